#include "device/runtime.hpp"

namespace isthmus {
namespace {

// Returns "", or why the library cannot be used. `title` names it in messages.
std::string load_library(gpu::gpu_functions& functions, gpu::vendor_library vendor,
                         const library_search_request& search, const std::string& title) {
  std::string reason;
  const dynamic_library file = dynamic_library::open(search, reason);
  if (!file) return "no " + title + " could be loaded: " + reason;
  const std::string missing = functions.look_up(vendor, file);
  return missing.empty() ? "" : file.path() + " lacks " + missing;
}

}  // namespace

std::string device_runtime::load(isthmus_platform platform, const char* library, const char* site_packages) {
  const bool is_cuda = platform == ISTHMUS_PLATFORM_CUDA;
  const auto vendor = is_cuda ? gpu::vendor_library::cuda_runtime : gpu::vendor_library::hip;
  library_search_request search = gpu::library_search(vendor);
  search.option = library;
  search.site_packages = site_packages;
  return load_library(*this, vendor, search, is_cuda ? "CUDA runtime" : "HIP runtime");
}

// The CUDA runtime cannot wait for words, so that function is loaded from the CUDA driver.
std::string device_runtime::load_wait_functions(isthmus_platform platform, const char* driver) {
  if (platform != ISTHMUS_PLATFORM_CUDA) return "";
  library_search_request search = gpu::library_search(gpu::vendor_library::cuda_driver);
  search.option = driver;
  gpu::gpu_functions functions;
  const std::string problem = load_library(functions, gpu::vendor_library::cuda_driver, search, "CUDA driver");
  if (problem.empty()) stream_wait_word = functions.stream_wait_word;
  return problem;
}

bool device_runtime::can_flush(int device) const {
  int is_supported = 0;
  return stream_wait_word != nullptr &&
         device_get_attribute(&is_supported, gpu::attribute_flush_remote_writes, device) == gpu::success &&
         is_supported != 0;
}

int device_runtime::wait_value(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const {
  if (stream_wait_word != nullptr)
    return stream_wait_word(stream, word, value, gpu::wait_until_reached | (flush ? gpu::wait_then_flush : 0));
  return stream_wait_masked_word(stream, word, value, gpu::wait_until_reached, ~std::uint32_t{0});
}

}  // namespace isthmus
