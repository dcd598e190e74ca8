// Checks runtime.hpp against HIP's header, if it is installed. Generates no code.
#include <hip/hip_runtime_api.h>

#include "base/abi_check.hpp"
#include "device/runtime.hpp"

namespace isthmus {

static_assert(matches_abi<decltype(device_runtime::get_device_count)>(&hipGetDeviceCount));
static_assert(matches_abi<decltype(device_runtime::get_device)>(&hipGetDevice));
static_assert(matches_abi<decltype(device_runtime::set_device)>(&hipSetDevice));
static_assert(matches_abi<decltype(device_runtime::device_get_pci_bus_id)>(&hipDeviceGetPCIBusId));
static_assert(matches_abi<decltype(device_runtime::device_get_attribute)>(&hipDeviceGetAttribute));
static_assert(matches_abi<decltype(device_runtime::device_synchronize)>(&hipDeviceSynchronize));
static_assert(
    matches_abi<decltype(device_runtime::malloc)>(static_cast<hipError_t (*)(void**, size_t)>(&hipMalloc)));
static_assert(matches_abi<decltype(device_runtime::free)>(&hipFree));
static_assert(matches_abi<decltype(device_runtime::malloc_async)>(
    static_cast<hipError_t (*)(void**, size_t, hipStream_t)>(&hipMallocAsync)));
static_assert(matches_abi<decltype(device_runtime::free_async)>(&hipFreeAsync));
static_assert(matches_abi<decltype(device_runtime::memcpy_async)>(&hipMemcpyAsync));
static_assert(matches_abi<decltype(device_runtime::get_error_string)>(&hipGetErrorString));
static_assert(matches_abi<decltype(device_runtime::host_alloc)>(
    static_cast<hipError_t (*)(void**, size_t, unsigned)>(&hipHostMalloc)));
static_assert(matches_abi<decltype(device_runtime::host_free)>(&hipHostFree));
static_assert(matches_abi<decltype(device_runtime::stream_create)>(&hipStreamCreateWithFlags));
static_assert(matches_abi<decltype(device_runtime::stream_destroy)>(&hipStreamDestroy));
static_assert(matches_abi<decltype(device_runtime::stream_get_flags)>(&hipStreamGetFlags));
static_assert(matches_abi<decltype(device_runtime::event_create)>(&hipEventCreateWithFlags));
static_assert(matches_abi<decltype(device_runtime::event_destroy)>(&hipEventDestroy));
static_assert(matches_abi<decltype(device_runtime::event_record)>(
    static_cast<hipError_t (*)(hipEvent_t, hipStream_t)>(&hipEventRecord)));
static_assert(matches_abi<decltype(device_runtime::event_query)>(&hipEventQuery));
static_assert(runtime_not_ready == hipErrorNotReady);
static_assert(non_blocking_stream == hipStreamNonBlocking);
static_assert(event_without_timing == hipEventDisableTiming);
static_assert(memcpy_default == hipMemcpyDefault);

}  // namespace isthmus
