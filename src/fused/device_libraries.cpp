#include "fused/device_libraries.hpp"

#include "runtime/error.hpp"
#include "runtime/exchange.hpp"

namespace isthmus::fused {

device_libraries find_device_libraries(communicator& owner) {
  std::string reason;
  auto* driver = device_driver::get(owner.ranks().device.platform, reason);
  const cublaslt* library = nullptr;
  if (driver != nullptr && owner.ranks().device.platform == ISTHMUS_PLATFORM_CUDA)
    library = cublaslt::get(owner.option("backend.fused.cublaslt_library"), reason);
  const auto all = gather_values(owner.meeting(), static_cast<std::int32_t>(library != nullptr));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == 0)
      throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                       library == nullptr ? "fused_plan_create: " + reason
                                          : fmt::format("fused_plan_create: rank {} has no cuBLASLt", rank),
                       "name the library in ISTHMUS_CUBLASLT_LIBRARY");
  return {*driver, *library};
}

}  // namespace isthmus::fused
