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

namespace isthmus {

std::string device_runtime::load(isthmus_platform platform, const char* library, const char* site_packages) {
  const bool is_cuda = platform == ISTHMUS_PLATFORM_CUDA;
  const auto vendor = is_cuda ? gpu::vendor_library::cuda_runtime : gpu::vendor_library::hip;
  library_search_request search = gpu::library_search(vendor);
  search.option = library;
  search.site_packages = site_packages;
  std::string reason;
  const dynamic_library file = dynamic_library::open(search, reason);
  if (!file) return std::string("no ") + (is_cuda ? "CUDA" : "HIP") + " runtime could be loaded: " + reason;
  const std::string missing = look_up(vendor, file);
  return missing.empty() ? "" : file.path() + " lacks " + missing;
}

}  // namespace isthmus
