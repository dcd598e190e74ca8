#include "staging_runtime.hpp"

#include "../xccl/xccl_traits.hpp"
#include "runtime/dynamic_library.hpp"

namespace isthmus::hybrid {
namespace {

constexpr unsigned wait_greater_or_equal = 0;   // CU_STREAM_WAIT_VALUE_GEQ, hipStreamWaitValueGte
constexpr unsigned wait_then_flush = 1U << 30;  // CU_STREAM_WAIT_VALUE_FLUSH
constexpr int can_flush_remote_writes = 98;     // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES

}  // namespace

bool staging_runtime::can_flush(int device) const {
  int can = 0;
  return m_cuda_attribute != nullptr && m_cuda_attribute(&can, can_flush_remote_writes, device) == 0 &&
         can != 0;
}

int staging_runtime::hold(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const {
  if (m_cuda_wait != nullptr)
    return m_cuda_wait(stream, reinterpret_cast<std::uint64_t>(word), value,
                       wait_greater_or_equal | (flush ? wait_then_flush : 0));
  return m_hip_wait(stream, word, value, wait_greater_or_equal, ~std::uint32_t{0});
}

std::string staging_runtime::load(isthmus_platform platform, const char* library, const char* driver) {
  const bool cuda = platform == ISTHMUS_PLATFORM_CUDA;
  search_request search = cuda ? xccl::nccl_traits::runtime_search() : xccl::rccl_traits::runtime_search();
  search.option = library;
  std::string reason;
  const auto runtime = dynamic_library::open(search, reason);
  if (!runtime) return std::string("no ") + (cuda ? "CUDA" : "HIP") + " runtime could be loaded: " + reason;
  symbol_loader functions(runtime, cuda ? "cuda" : "hip");
  functions.need(set_device, "SetDevice");
  functions.need(stream_create, "StreamCreateWithFlags");
  functions.need(stream_destroy, "StreamDestroy");
  functions.need(stream_get_flags, "StreamGetFlags");
  functions.need(event_create, "EventCreateWithFlags");
  functions.need(event_destroy, "EventDestroy");
  functions.need(event_record, "EventRecord");
  functions.need(event_query, "EventQuery");
  functions.need(host_alloc, cuda ? "HostAlloc" : "HostMalloc");
  functions.need(host_free, cuda ? "FreeHost" : "HostFree");
  functions.need(memcpy_async, "MemcpyAsync");
  functions.need(get_error_string, "GetErrorString");
  if (!cuda) functions.need(m_hip_wait, "StreamWaitValue32");
  if (!functions.missing().empty()) return runtime.path() + " lacks " + functions.missing();
  if (!cuda) return {};
  search_request driver_search;
  driver_search.option = driver;
  driver_search.variable = "ISTHMUS_CUDA_DRIVER_LIBRARY";
  driver_search.names = {"libcuda.so.1"};
  const auto driver_library = dynamic_library::open(driver_search, reason);
  if (!driver_library) return "no CUDA driver could be loaded: " + reason;
  symbol_loader driver_functions(driver_library, "cu");
  driver_functions.need(m_cuda_wait, "StreamWaitValue32_v2");
  driver_functions.need(m_cuda_attribute, "DeviceGetAttribute");
  return driver_functions.missing().empty() ? ""
                                            : driver_library.path() + " lacks " + driver_functions.missing();
}

}  // namespace isthmus::hybrid
