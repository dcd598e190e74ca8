// device_runtime.hpp against HIP's own header. Compiled where it is installed; no code comes of it.
#include <hip/hip_runtime_api.h>

#include "device_runtime.hpp"
#include "runtime/abi_check.hpp"

namespace isthmus::xccl {

static_assert(calls<decltype(device_runtime::get_device_count)>(&hipGetDeviceCount));
static_assert(calls<decltype(device_runtime::get_device)>(&hipGetDevice));
static_assert(calls<decltype(device_runtime::set_device)>(&hipSetDevice));
static_assert(calls<decltype(device_runtime::device_get_pci_bus_id)>(&hipDeviceGetPCIBusId));
static_assert(calls<decltype(device_runtime::device_get_attribute)>(&hipDeviceGetAttribute));
static_assert(calls<decltype(device_runtime::device_synchronize)>(&hipDeviceSynchronize));
static_assert(calls<decltype(device_runtime::malloc)>(static_cast<hipError_t (*)(void**, size_t)>(&hipMalloc)));
static_assert(calls<decltype(device_runtime::free)>(&hipFree));
static_assert(calls<decltype(device_runtime::malloc_async)>(
    static_cast<hipError_t (*)(void**, size_t, hipStream_t)>(&hipMallocAsync)));
static_assert(calls<decltype(device_runtime::free_async)>(&hipFreeAsync));
static_assert(calls<decltype(device_runtime::memcpy_async)>(&hipMemcpyAsync));
static_assert(calls<decltype(device_runtime::get_error_string)>(&hipGetErrorString));
static_assert(memcpy_default == hipMemcpyDefault);

}  // namespace isthmus::xccl
