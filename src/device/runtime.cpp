#include "device/runtime.hpp"

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
