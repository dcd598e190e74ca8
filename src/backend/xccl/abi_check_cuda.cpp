// device_runtime.hpp against CUDA's own header. Compiled where it is installed; no code comes of it.
#include <cuda_runtime_api.h>

#include "device_runtime.hpp"
#include "runtime/abi_check.hpp"
#include "xccl_traits.hpp"

namespace isthmus::xccl {

static_assert(calls<decltype(device_runtime::get_device_count)>(&cudaGetDeviceCount));
static_assert(calls<decltype(device_runtime::get_device)>(&cudaGetDevice));
static_assert(calls<decltype(device_runtime::set_device)>(&cudaSetDevice));
static_assert(calls<decltype(device_runtime::device_get_pci_bus_id)>(&cudaDeviceGetPCIBusId));
static_assert(calls<decltype(device_runtime::device_get_attribute)>(&cudaDeviceGetAttribute));
static_assert(calls<decltype(device_runtime::device_synchronize)>(&cudaDeviceSynchronize));
static_assert(
    calls<decltype(device_runtime::malloc)>(static_cast<cudaError_t (*)(void**, size_t)>(&cudaMalloc)));
static_assert(calls<decltype(device_runtime::free)>(&cudaFree));
static_assert(calls<decltype(device_runtime::malloc_async)>(
    static_cast<cudaError_t (*)(void**, size_t, cudaStream_t)>(&cudaMallocAsync)));
static_assert(calls<decltype(device_runtime::free_async)>(&cudaFreeAsync));
static_assert(calls<decltype(device_runtime::memcpy_async)>(&cudaMemcpyAsync));
static_assert(calls<decltype(device_runtime::get_error_string)>(&cudaGetErrorString));
static_assert(memcpy_default == cudaMemcpyDefault);
static_assert(nccl_traits::capability_attribute == cudaDevAttrComputeCapabilityMajor);

}  // namespace isthmus::xccl
