#include "device/gpu/functions.hpp"

#include <array>

namespace isthmus::gpu {

std::string gpu_functions::look_up(vendor_library vendor, const dynamic_library& file) {
  const auto column = static_cast<std::size_t>(vendor);
  symbol_loader loader(file, std::array{"cu", "cuda", "hip"}[column]);
#define ISTHMUS_GPU_FUNCTION(member, result, arguments, ...) \
  loader.load_required(member, std::array{ISTHMUS_GPU_NAMES(__VA_ARGS__)}[column]);
#define ISTHMUS_GPU_OPTIONAL_FUNCTION(member, result, arguments, ...) \
  loader.load_optional(member, std::array{ISTHMUS_GPU_NAMES(__VA_ARGS__)}[column]);
#define ISTHMUS_GPU_NAMES(driver, runtime, hip) #driver, #runtime, #hip
#include "device/gpu/functions.def"
#undef ISTHMUS_GPU_NAMES
  return loader.first_missing();
}

}  // namespace isthmus::gpu
