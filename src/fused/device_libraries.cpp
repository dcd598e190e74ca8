#include "fused/device_libraries.hpp"

#include "runtime/error.hpp"
#include "runtime/exchange.hpp"

namespace isthmus::fused {

device_libraries find_device_libraries(communicator& owner) {
  const isthmus_platform platform = owner.ranks().device.platform;
  const lt_traits& traits = *blaslt::traits_of(platform);
  std::string reason;
  auto* driver = device_driver::get(platform, reason);
  const blaslt* library =
      driver == nullptr ? nullptr : blaslt::get(platform, owner.option(traits.option), reason);
  const auto all = gather_values(owner.meeting(), static_cast<std::int32_t>(library != nullptr));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == 0)
      throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                       library == nullptr
                           ? "fused_plan_create: " + reason
                           : fmt::format("fused_plan_create: rank {} has no {}", rank, traits.name),
                       fmt::format("name the library in {}", traits.variable));
  return {*driver, *library};
}

}  // namespace isthmus::fused
