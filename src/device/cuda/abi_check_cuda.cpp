// Checks gpu_api.hpp and cuda_api.hpp against CUDA's header, if it is installed. Generates no code.
#include <cuda.h>

#include "base/abi_check.hpp"
#include "device/cuda/cuda_api.hpp"

namespace isthmus::gpu {

static_assert(matches_abi<decltype(gpu_api::init)>(&cuInit));
static_assert(matches_abi<decltype(gpu_api::get_version)>(&cuDriverGetVersion));
static_assert(matches_abi<decltype(gpu_api::get_count)>(&cuDeviceGetCount));
static_assert(matches_abi<decltype(gpu_api::get_name)>(&cuDeviceGetName));
static_assert(matches_abi<decltype(gpu_api::get_bus_id)>(&cuDeviceGetPCIBusId));
static_assert(matches_abi<decltype(gpu_api::can_access_peer)>(&cuDeviceCanAccessPeer));
static_assert(matches_abi<decltype(gpu_api::get_memory_info)>(&cuMemGetInfo));
static_assert(matches_abi<decltype(gpu_api::get_pointer_attribute)>(&cuPointerGetAttribute));
static_assert(matches_abi<decltype(gpu_api::allocate)>(&cuMemAlloc));
static_assert(matches_abi<decltype(gpu_api::free)>(&cuMemFree));
static_assert(matches_abi<decltype(gpu_api::allocate_host)>(&cuMemHostAlloc));
static_assert(matches_abi<decltype(gpu_api::free_host)>(&cuMemFreeHost));
static_assert(matches_abi<decltype(gpu_api::ipc_export)>(&cuIpcGetMemHandle));
static_assert(matches_abi<decltype(gpu_api::ipc_open)>(&cuIpcOpenMemHandle));
static_assert(matches_abi<decltype(gpu_api::ipc_close)>(&cuIpcCloseMemHandle));
static_assert(matches_abi<decltype(gpu_api::stream_create)>(&cuStreamCreateWithPriority));
static_assert(matches_abi<decltype(gpu_api::stream_priorities)>(&cuCtxGetStreamPriorityRange));
static_assert(matches_abi<decltype(gpu_api::stream_destroy)>(&cuStreamDestroy));
static_assert(matches_abi<decltype(gpu_api::stream_synchronize)>(&cuStreamSynchronize));
static_assert(matches_abi<decltype(gpu_api::stream_is_capturing)>(&cuStreamIsCapturing));
static_assert(matches_abi<decltype(gpu_api::stream_wait_event)>(&cuStreamWaitEvent));
static_assert(matches_abi<decltype(gpu_api::event_create)>(&cuEventCreate));
static_assert(matches_abi<decltype(gpu_api::event_destroy)>(&cuEventDestroy));
static_assert(matches_abi<decltype(gpu_api::event_record)>(&cuEventRecord));
static_assert(matches_abi<decltype(gpu_api::event_query)>(&cuEventQuery));
static_assert(matches_abi<decltype(gpu_api::event_elapsed)>(&cuEventElapsedTime));
static_assert(matches_abi<decltype(gpu_api::fill)>(&cuMemsetD8Async));
static_assert(matches_abi<decltype(gpu_api::write_word)>(&cuStreamWriteValue32));
static_assert(matches_abi<decltype(gpu_api::module_load)>(&cuModuleLoadData));
static_assert(matches_abi<decltype(gpu_api::module_function)>(&cuModuleGetFunction));
static_assert(matches_abi<decltype(gpu_api::exchange_capture_mode)>(&cuThreadExchangeStreamCaptureMode));
static_assert(matches_abi<decltype(gpu_api::launch)>(&cuLaunchKernel));
#if CUDA_VERSION >= 12040
static_assert(matches_abi<decltype(gpu_api::function_load)>(&cuFuncLoad));
#endif

static_assert(matches_abi<decltype(virtual_memory::create)>(&cuMemCreate));
static_assert(matches_abi<decltype(virtual_memory::release)>(&cuMemRelease));
static_assert(matches_abi<decltype(virtual_memory::reserve)>(&cuMemAddressReserve));
static_assert(matches_abi<decltype(virtual_memory::unreserve)>(&cuMemAddressFree));
static_assert(matches_abi<decltype(virtual_memory::map)>(&cuMemMap));
static_assert(matches_abi<decltype(virtual_memory::unmap)>(&cuMemUnmap));
static_assert(matches_abi<decltype(virtual_memory::set_access)>(&cuMemSetAccess));
static_assert(matches_abi<decltype(virtual_memory::granularity)>(&cuMemGetAllocationGranularity));
static_assert(matches_abi<decltype(virtual_memory::export_descriptor)>(&cuMemExportToShareableHandle));
static_assert(matches_abi<decltype(virtual_memory::import_descriptor)>(&cuMemImportFromShareableHandle));

static_assert(matches_abi<decltype(cuda_api::get_attribute)>(&cuDeviceGetAttribute));
static_assert(matches_abi<decltype(cuda_api::error_string)>(&cuGetErrorString));
static_assert(matches_abi<decltype(cuda_api::retain_context)>(&cuDevicePrimaryCtxRetain));
static_assert(matches_abi<decltype(cuda_api::push_context)>(&cuCtxPushCurrent));
static_assert(matches_abi<decltype(cuda_api::pop_context)>(&cuCtxPopCurrent));
static_assert(matches_abi<decltype(cuda_api::enable_context)>(&cuCtxEnablePeerAccess));
static_assert(matches_abi<decltype(cuda_api::copy_async)>(&cuMemcpyAsync));
static_assert(matches_abi<decltype(cuda_api::wait_value)>(&cuStreamWaitValue32));
static_assert(matches_abi<decltype(cuda_api::batch_words)>(&cuStreamBatchMemOp));
#if CUDA_VERSION >= 13000
static_assert(matches_abi<decltype(cuda_api::copy_batch_v2)>(&cuMemcpyBatchAsync));
#elif CUDA_VERSION >= 12080
static_assert(matches_abi<decltype(cuda_api::copy_batch_v1)>(&cuMemcpyBatchAsync));
#endif

static_assert(success == CUDA_SUCCESS && out_of_memory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(no_device == CUDA_ERROR_NO_DEVICE && not_ready == CUDA_ERROR_NOT_READY);
static_assert(invalid_device == CUDA_ERROR_INVALID_DEVICE);
static_assert(peer_already_enabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(not_supported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(stream_non_blocking == CU_STREAM_NON_BLOCKING && event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(host_portable == CU_MEMHOSTALLOC_PORTABLE && host_mapped == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(ipc_lazy_peer_access == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(attribute_memory_type == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(attribute_ordinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(wait_until_reached == CU_STREAM_WAIT_VALUE_GEQ && wait_until_equal == CU_STREAM_WAIT_VALUE_EQ);
static_assert(kind_wait_word == CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
              kind_write_word == CU_STREAM_MEM_OP_WRITE_VALUE_32);
static_assert(sizeof(word_operation) == sizeof(CUstreamBatchMemOpParams) &&
              offsetof(word_operation, word) == offsetof(CUstreamBatchMemOpParams, waitValue.address) &&
              offsetof(word_operation, value) == offsetof(CUstreamBatchMemOpParams, waitValue.value) &&
              offsetof(word_operation, flags) == offsetof(CUstreamBatchMemOpParams, writeValue.flags));
static_assert(capture_mode_relaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(attribute_capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              attribute_capability_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda_memory_type_device == CU_MEMORYTYPE_DEVICE);
static_assert(attribute_virtual_memory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(attribute_file_descriptors == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(type_pinned == CU_MEM_ALLOCATION_TYPE_PINNED && location_device == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(handle_file_descriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(access_read_write == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(granularity_recommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(sizeof(ipc_handle) == sizeof(CUipcMemHandle));
static_assert(sizeof(allocation_properties) == sizeof(CUmemAllocationProp) &&
              offsetof(allocation_properties, handle_types) ==
                  offsetof(CUmemAllocationProp, requestedHandleTypes) &&
              offsetof(allocation_properties, location) == offsetof(CUmemAllocationProp, location) &&
              offsetof(allocation_properties, compression) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(access_description) == sizeof(CUmemAccessDesc) &&
              offsetof(access_description, flags) == offsetof(CUmemAccessDesc, flags));
#if CUDA_VERSION >= 12080
static_assert(sizeof(copy_attributes) == sizeof(CUmemcpyAttributes) &&
              offsetof(copy_attributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint) &&
              offsetof(copy_attributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(source_in_stream_order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(prefer_overlap_with_compute == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
#endif

}  // namespace isthmus::gpu
