#include "staging_runtime.hpp"

#include "../xccl/dynamic_library.hpp"
#include "../xccl/xccl_traits.hpp"

namespace isthmus::hybrid {
namespace {

constexpr unsigned wait_greater_or_equal = 0;  // CU_STREAM_WAIT_VALUE_GEQ, hipStreamWaitValueGte

// Loads names behind one prefix and remembers the first that is missing.
struct name_loader {
  const xccl::dynamic_library& library;
  std::string prefix, missing;

  template <typename Function>
  void operator()(Function& function, const char* name) {
    function = reinterpret_cast<Function>(library.symbol(prefix + name));
    if (function == nullptr && missing.empty()) missing = prefix + name;
  }
};

}  // namespace

int staging_runtime::hold(void* stream, std::uint32_t* word, std::uint32_t value) const {
  if (m_cuda_wait != nullptr)
    return m_cuda_wait(stream, reinterpret_cast<std::uint64_t>(word), value, wait_greater_or_equal);
  return m_hip_wait(stream, word, value, wait_greater_or_equal, ~std::uint32_t{0});
}

std::string staging_runtime::load(isthmus_platform platform, const char* library, const char* driver) {
  const bool cuda = platform == ISTHMUS_PLATFORM_CUDA;
  xccl::search_request search =
      cuda ? xccl::nccl_traits::runtime_search() : xccl::rccl_traits::runtime_search();
  search.option = library;
  std::string reason;
  const auto runtime = xccl::dynamic_library::open(candidates(search), reason);
  if (!runtime) return std::string("no ") + (cuda ? "CUDA" : "HIP") + " runtime could be loaded: " + reason;
  name_loader need{runtime, cuda ? "cuda" : "hip", {}};
  need(set_device, "SetDevice");
  need(stream_create, "StreamCreateWithFlags");
  need(stream_destroy, "StreamDestroy");
  need(event_create, "EventCreateWithFlags");
  need(event_destroy, "EventDestroy");
  need(event_record, "EventRecord");
  need(event_query, "EventQuery");
  need(host_alloc, cuda ? "HostAlloc" : "HostMalloc");
  need(host_free, cuda ? "FreeHost" : "HostFree");
  need(memcpy_async, "MemcpyAsync");
  need(get_error_string, "GetErrorString");
  if (!cuda) need(m_hip_wait, "StreamWaitValue32");
  if (!need.missing.empty()) return runtime.path() + " lacks " + need.missing;
  if (!cuda) return {};
  xccl::search_request driver_search;
  driver_search.option = driver;
  driver_search.variable = "ISTHMUS_CUDA_DRIVER_LIBRARY";
  driver_search.names = {"libcuda.so.1"};
  const auto driver_library = xccl::dynamic_library::open(candidates(driver_search), reason);
  if (!driver_library) return "no CUDA driver could be loaded: " + reason;
  name_loader need_driver{driver_library, "cu", {}};
  need_driver(m_cuda_wait, "StreamWaitValue32_v2");
  return need_driver.missing.empty() ? "" : driver_library.path() + " lacks " + need_driver.missing;
}

}  // namespace isthmus::hybrid
