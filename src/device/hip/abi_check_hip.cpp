// Checks gpu_api.hpp and hip_api.hpp against HIP's header, if it is installed. Generates no code.
#include <hip/hip_runtime_api.h>

#include "base/abi_check.hpp"
#include "device/hip/hip_api.hpp"

namespace isthmus::gpu {

static_assert(matches_abi<decltype(gpu_api::init)>(&hipInit));
static_assert(matches_abi<decltype(gpu_api::get_version)>(&hipDriverGetVersion));
static_assert(matches_abi<decltype(gpu_api::get_count)>(&hipGetDeviceCount));
static_assert(matches_abi<decltype(gpu_api::get_name)>(&hipDeviceGetName));
static_assert(matches_abi<decltype(gpu_api::get_bus_id)>(&hipDeviceGetPCIBusId));
static_assert(matches_abi<decltype(gpu_api::can_access_peer)>(&hipDeviceCanAccessPeer));
static_assert(matches_abi<decltype(gpu_api::get_memory_info)>(&hipMemGetInfo));
static_assert(matches_abi<decltype(gpu_api::get_pointer_attribute)>(&hipPointerGetAttribute));
static_assert(
    matches_abi<decltype(gpu_api::allocate)>(static_cast<hipError_t (*)(void**, size_t)>(&hipMalloc)));
static_assert(matches_abi<decltype(gpu_api::free)>(&hipFree));
static_assert(matches_abi<decltype(gpu_api::allocate_host)>(
    static_cast<hipError_t (*)(void**, size_t, unsigned)>(&hipHostMalloc)));
static_assert(matches_abi<decltype(gpu_api::free_host)>(&hipHostFree));
static_assert(matches_abi<decltype(gpu_api::ipc_export)>(&hipIpcGetMemHandle));
static_assert(matches_abi<decltype(gpu_api::ipc_open)>(&hipIpcOpenMemHandle));
static_assert(matches_abi<decltype(gpu_api::ipc_close)>(&hipIpcCloseMemHandle));
static_assert(matches_abi<decltype(gpu_api::stream_create)>(&hipStreamCreateWithPriority));
static_assert(matches_abi<decltype(gpu_api::stream_priorities)>(&hipDeviceGetStreamPriorityRange));
static_assert(matches_abi<decltype(gpu_api::stream_destroy)>(&hipStreamDestroy));
static_assert(matches_abi<decltype(gpu_api::stream_synchronize)>(&hipStreamSynchronize));
static_assert(matches_abi<decltype(gpu_api::stream_is_capturing)>(&hipStreamIsCapturing));
static_assert(matches_abi<decltype(gpu_api::stream_wait_event)>(&hipStreamWaitEvent));
static_assert(matches_abi<decltype(gpu_api::event_create)>(&hipEventCreateWithFlags));
static_assert(matches_abi<decltype(gpu_api::event_destroy)>(&hipEventDestroy));
static_assert(matches_abi<decltype(gpu_api::event_record)>(
    static_cast<hipError_t (*)(hipEvent_t, hipStream_t)>(&hipEventRecord)));
static_assert(matches_abi<decltype(gpu_api::event_query)>(&hipEventQuery));
static_assert(matches_abi<decltype(gpu_api::event_elapsed)>(&hipEventElapsedTime));
static_assert(matches_abi<decltype(gpu_api::fill)>(&hipMemsetD8Async));
static_assert(matches_abi<decltype(gpu_api::write_word)>(&hipStreamWriteValue32));
static_assert(matches_abi<decltype(gpu_api::module_load)>(&hipModuleLoadData));
static_assert(matches_abi<decltype(gpu_api::module_function)>(&hipModuleGetFunction));
static_assert(matches_abi<decltype(gpu_api::exchange_capture_mode)>(&hipThreadExchangeStreamCaptureMode));
static_assert(matches_abi<decltype(gpu_api::launch)>(&hipModuleLaunchKernel));

static_assert(matches_abi<decltype(hip_api::error_string)>(&hipGetErrorString));
static_assert(matches_abi<decltype(hip_api::last_error)>(&hipGetLastError));
static_assert(matches_abi<decltype(hip_api::get_device)>(&hipGetDevice));
static_assert(matches_abi<decltype(hip_api::set_device)>(&hipSetDevice));
static_assert(matches_abi<decltype(hip_api::runtime_version)>(&hipRuntimeGetVersion));
static_assert(matches_abi<decltype(hip_api::enable_device)>(&hipDeviceEnablePeerAccess));
static_assert(matches_abi<decltype(hip_api::allocate_with_flags)>(&hipExtMallocWithFlags));
static_assert(matches_abi<decltype(hip_api::copy_async)>(&hipMemcpyAsync));
static_assert(matches_abi<decltype(hip_api::wait_value)>(&hipStreamWaitValue32));

static_assert(success == hipSuccess && out_of_memory == hipErrorOutOfMemory && no_device == hipErrorNoDevice);
static_assert(not_ready == hipErrorNotReady && not_supported == hipErrorNotSupported);
static_assert(invalid_device == hipErrorInvalidDevice);
static_assert(peer_already_enabled == hipErrorPeerAccessAlreadyEnabled);
static_assert(stream_non_blocking == hipStreamNonBlocking && event_disable_timing == hipEventDisableTiming);
static_assert(host_portable == hipHostMallocPortable && host_mapped == hipHostMallocMapped);
static_assert(capture_mode_relaxed == hipStreamCaptureModeRelaxed);
static_assert(attribute_memory_type == HIP_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(attribute_ordinal == HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(wait_until_reached == hipStreamWaitValueGte && wait_until_equal == hipStreamWaitValueEq);
static_assert(hip_copy_default == hipMemcpyDefault && hip_fine_grained == hipDeviceMallocFinegrained);
static_assert(sizeof(ipc_handle) == sizeof(hipIpcMemHandle_t));

}  // namespace isthmus::gpu
