#include "device/runtime.hpp"

#include "device/libraries.hpp"

namespace isthmus {
namespace {

constexpr unsigned wait_greater_or_equal = 0;   // CU_STREAM_WAIT_VALUE_GEQ, hipStreamWaitValueGte
constexpr unsigned wait_then_flush = 1U << 30;  // CU_STREAM_WAIT_VALUE_FLUSH
constexpr int can_flush_remote_writes = 98;     // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES

}  // namespace

std::string device_runtime::load(isthmus_platform platform, const char* library, const char* site_packages) {
  const bool is_cuda = platform == ISTHMUS_PLATFORM_CUDA;
  library_search_request search = is_cuda ? cuda_runtime_library() : hip_library();
  search.option = library;
  search.site_packages = site_packages;
  std::string reason;
  const dynamic_library runtime_library = dynamic_library::open(search, reason);
  if (!runtime_library)
    return std::string("no ") + (is_cuda ? "CUDA" : "HIP") + " runtime could be loaded: " + reason;
  symbol_loader loader(runtime_library, is_cuda ? "cuda" : "hip");
  loader.load_required(get_device_count, "GetDeviceCount");
  loader.load_required(get_device, "GetDevice");
  loader.load_required(set_device, "SetDevice");
  loader.load_required(device_get_pci_bus_id, "DeviceGetPCIBusId");
  loader.load_required(device_get_attribute, "DeviceGetAttribute");
  loader.load_required(device_synchronize, "DeviceSynchronize");
  loader.load_required(malloc, "Malloc");
  loader.load_required(free, "Free");
  loader.load_required(malloc_async, "MallocAsync");
  loader.load_required(free_async, "FreeAsync");
  loader.load_required(host_alloc, is_cuda ? "HostAlloc" : "HostMalloc");
  loader.load_required(host_free, is_cuda ? "FreeHost" : "HostFree");
  loader.load_required(memcpy_async, "MemcpyAsync");
  loader.load_required(stream_create, "StreamCreateWithFlags");
  loader.load_required(stream_destroy, "StreamDestroy");
  loader.load_required(stream_get_flags, "StreamGetFlags");
  loader.load_required(event_create, "EventCreateWithFlags");
  loader.load_required(event_destroy, "EventDestroy");
  loader.load_required(event_record, "EventRecord");
  loader.load_required(event_query, "EventQuery");
  loader.load_required(get_error_string, "GetErrorString");
  if (!is_cuda) loader.load_optional(m_hip_wait_value, "StreamWaitValue32");
  return loader.first_missing().empty() ? "" : runtime_library.path() + " lacks " + loader.first_missing();
}

// The CUDA runtime lacks these functions, so they are loaded from the CUDA driver.
std::string device_runtime::load_wait_functions(isthmus_platform platform, const char* driver) {
  if (platform != ISTHMUS_PLATFORM_CUDA)
    return m_hip_wait_value != nullptr ? "" : "the HIP runtime lacks hipStreamWaitValue32";
  library_search_request search = cuda_driver_library();
  search.option = driver;
  std::string reason;
  const dynamic_library driver_library = dynamic_library::open(search, reason);
  if (!driver_library) return "no CUDA driver could be loaded: " + reason;
  symbol_loader loader(driver_library, "cu");
  loader.load_required(m_cuda_wait_value, "StreamWaitValue32_v2");
  loader.load_required(m_cuda_attribute, "DeviceGetAttribute");
  return loader.first_missing().empty() ? "" : driver_library.path() + " lacks " + loader.first_missing();
}

bool device_runtime::can_flush(int device) const {
  int is_supported = 0;
  return m_cuda_attribute != nullptr && m_cuda_attribute(&is_supported, can_flush_remote_writes, device) == 0 &&
         is_supported != 0;
}

int device_runtime::wait_value(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const {
  if (m_cuda_wait_value != nullptr)
    return m_cuda_wait_value(stream, reinterpret_cast<std::uint64_t>(word), value,
                             wait_greater_or_equal | (flush ? wait_then_flush : 0));
  return m_hip_wait_value(stream, word, value, wait_greater_or_equal, ~std::uint32_t{0});
}

}  // namespace isthmus
