#include "operators/fused/device/libraries.hpp"

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {

device_libraries find_device_libraries(communicator& owner) {
  const isthmus_platform platform = owner.ranks().device.platform;
  const lt_traits& traits = *blaslt::traits_of(platform);
  std::string reason;
  auto* driver = device_driver::get(platform, reason);
  const blaslt* library =
      driver == nullptr ? nullptr : blaslt::get(platform, owner.option(traits.option), reason);
  std::optional<error> missing;
  if (library == nullptr)
    missing = make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "fused_plan_create: " + reason,
                         fmt::format("set {} to the path of the library", traits.variable));
  agree(owner.control(), no_value{}, missing, fmt::format("fused_plan_create: {} is missing", traits.name),
        ISTHMUS_ERROR_UNSUPPORTED);
  return {*driver, *library};
}

}  // namespace isthmus::fused
