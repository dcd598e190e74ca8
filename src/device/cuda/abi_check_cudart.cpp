// Checks runtime.hpp against CUDA's header, if it is installed. Generates no code.
#include <cuda_runtime_api.h>

#include "base/abi_check.hpp"
#include "device/runtime.hpp"

namespace isthmus {

static_assert(matches_abi<decltype(device_runtime::get_device_count)>(&cudaGetDeviceCount));
static_assert(matches_abi<decltype(device_runtime::get_device)>(&cudaGetDevice));
static_assert(matches_abi<decltype(device_runtime::set_device)>(&cudaSetDevice));
static_assert(matches_abi<decltype(device_runtime::device_get_pci_bus_id)>(&cudaDeviceGetPCIBusId));
static_assert(matches_abi<decltype(device_runtime::device_get_attribute)>(&cudaDeviceGetAttribute));
static_assert(matches_abi<decltype(device_runtime::device_synchronize)>(&cudaDeviceSynchronize));
static_assert(
    matches_abi<decltype(device_runtime::malloc)>(static_cast<cudaError_t (*)(void**, size_t)>(&cudaMalloc)));
static_assert(matches_abi<decltype(device_runtime::free)>(&cudaFree));
static_assert(matches_abi<decltype(device_runtime::malloc_async)>(
    static_cast<cudaError_t (*)(void**, size_t, cudaStream_t)>(&cudaMallocAsync)));
static_assert(matches_abi<decltype(device_runtime::free_async)>(&cudaFreeAsync));
static_assert(matches_abi<decltype(device_runtime::memcpy_async)>(&cudaMemcpyAsync));
static_assert(matches_abi<decltype(device_runtime::get_error_string)>(&cudaGetErrorString));
static_assert(matches_abi<decltype(device_runtime::host_alloc)>(
    static_cast<cudaError_t (*)(void**, size_t, unsigned)>(&cudaHostAlloc)));
static_assert(matches_abi<decltype(device_runtime::host_free)>(&cudaFreeHost));
static_assert(matches_abi<decltype(device_runtime::stream_create)>(&cudaStreamCreateWithFlags));
static_assert(matches_abi<decltype(device_runtime::stream_destroy)>(&cudaStreamDestroy));
static_assert(matches_abi<decltype(device_runtime::stream_get_flags)>(&cudaStreamGetFlags));
static_assert(matches_abi<decltype(device_runtime::event_create)>(
    static_cast<cudaError_t (*)(cudaEvent_t*, unsigned)>(&cudaEventCreateWithFlags)));
static_assert(matches_abi<decltype(device_runtime::event_destroy)>(&cudaEventDestroy));
static_assert(matches_abi<decltype(device_runtime::event_record)>(
    static_cast<cudaError_t (*)(cudaEvent_t, cudaStream_t)>(&cudaEventRecord)));
static_assert(matches_abi<decltype(device_runtime::event_query)>(&cudaEventQuery));
static_assert(cuda_capability_major == cudaDevAttrComputeCapabilityMajor);
static_assert(runtime_not_ready == cudaErrorNotReady);
static_assert(non_blocking_stream == cudaStreamNonBlocking);
static_assert(event_without_timing == cudaEventDisableTiming);
static_assert(memcpy_default == cudaMemcpyDefault);

}  // namespace isthmus
