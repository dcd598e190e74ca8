#include "operators/fused/device/blaslt.hpp"

#include <fmt/format.h>

#include <memory>
#include <mutex>

namespace isthmus::fused {
namespace {

library_search_request make_search_request(const lt_traits& traits, const char* option) {
  library_search_request search;
  search.option = option;
  search.variable = traits.variable;
  if (&traits == &cublaslt_traits) {
    search.names = {"libcublasLt.so.13", "libcublasLt.so.12"};
    search.wheel_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"};
    search.system_folders = {"/usr/local/cuda/lib64"};
  } else {
    search.names = {"libhipblaslt.so.1", "libhipblaslt.so.0"};
    search.wheel_folders = {"torch/lib"};
    search.system_folders = {"/opt/rocm/lib"};
  }
  return search;
}

std::unique_ptr<blaslt> load(const lt_traits& traits, const char* option, std::string& reason) {
  const dynamic_library library = dynamic_library::open(make_search_request(traits, option), reason);
  if (!library) {
    reason = fmt::format("no {} library could be loaded: {}", traits.name, reason);
    return nullptr;
  }
  auto functions = std::make_unique<blaslt>(blaslt{.traits = traits, .path = library.path()});
  symbol_loader loader(library, traits.prefix);
  const bool is_cuda = &traits == &cublaslt_traits;
#define ISTHMUS_LT_FUNCTION(member, result, arguments, cuda, hip) \
  loader.load_required(functions->member, is_cuda ? #cuda : #hip);
#include "operators/fused/device/blaslt.def"
  if (loader.first_missing().empty()) return functions;
  reason = fmt::format("{} lacks {}", functions->path, loader.first_missing());
  return nullptr;
}

}  // namespace

const lt_traits* blaslt::traits_of(isthmus_platform platform) {
  switch (platform) {
    case ISTHMUS_PLATFORM_CUDA: return &cublaslt_traits;
    case ISTHMUS_PLATFORM_HIP: return &hipblaslt_traits;
    default: return nullptr;
  }
}

const blaslt* blaslt::get(isthmus_platform platform, const char* option, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<blaslt> cuda, hip;
  const std::lock_guard lock(mutex);
  const lt_traits* traits = traits_of(platform);
  if (traits == nullptr) {
    reason =
        fmt::format("no matrix product library is supported for platform {}", isthmus_platform_name(platform));
    return nullptr;
  }
  auto& instance = platform == ISTHMUS_PLATFORM_CUDA ? cuda : hip;
  if (instance == nullptr) instance = load(*traits, option, reason);
  return instance.get();
}

std::string blaslt::version(void* handle) const {
  if (get_version != nullptr) return std::to_string(get_version());
  int number = 0;
  if (get_version_for_handle(handle, &number) != lt_success) return "unknown version";
  return fmt::format("{}.{}.{}", number / 100000, number / 100 % 1000, number % 100);
}

std::string blaslt::status_text(int status) const {
  return get_status_name != nullptr ? get_status_name(status) : fmt::format("hipblasStatus_t {}", status);
}

}  // namespace isthmus::fused
