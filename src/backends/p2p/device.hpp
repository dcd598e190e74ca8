// Portability layer of the peer-memory kernels for CUDA C++ and HIP: the runtime calls that the backend makes,
// and the few device instructions that the two languages spell differently. The plug-in is linked with its runtime,
// so the vendor's header declares the functions. Most differ only in their prefix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/gpu/functions.hpp"

#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime.h>
#define ISTHMUS_P2P_HIP 1
#define ISTHMUS_P2P_PLATFORM ISTHMUS_PLATFORM_HIP
#define ISTHMUS_P2P_NATIVE(name) hip##name
#define ISTHMUS_P2P_KERNEL_ARGUMENT
#else
#include <cuda_runtime.h>
#define ISTHMUS_P2P_HIP 0
#define ISTHMUS_P2P_PLATFORM ISTHMUS_PLATFORM_CUDA
#define ISTHMUS_P2P_NATIVE(name) cuda##name
#define ISTHMUS_P2P_KERNEL_ARGUMENT __grid_constant__  // indexed without a copy to local memory
#endif

namespace isthmus::p2p {

using gpu_stream = ISTHMUS_P2P_NATIVE(Stream_t);
using gpu_error = ISTHMUS_P2P_NATIVE(Error_t);
using gpu_event = ISTHMUS_P2P_NATIVE(Event_t);
using gpu_ipc_handle = ISTHMUS_P2P_NATIVE(IpcMemHandle_t);
constexpr gpu_error gpu_success = ISTHMUS_P2P_NATIVE(Success);
constexpr gpu_error gpu_invalid_value = ISTHMUS_P2P_NATIVE(ErrorInvalidValue);

constexpr auto gpu_error_text = ISTHMUS_P2P_NATIVE(GetErrorString);
constexpr auto gpu_set_device = ISTHMUS_P2P_NATIVE(SetDevice);
constexpr auto gpu_free = ISTHMUS_P2P_NATIVE(Free);
constexpr auto gpu_memset = ISTHMUS_P2P_NATIVE(Memset);
constexpr auto gpu_memset_async = ISTHMUS_P2P_NATIVE(MemsetAsync);
constexpr auto gpu_synchronize_device = ISTHMUS_P2P_NATIVE(DeviceSynchronize);
constexpr auto gpu_synchronize_stream = ISTHMUS_P2P_NATIVE(StreamSynchronize);
constexpr auto gpu_event_record = ISTHMUS_P2P_NATIVE(EventRecord);
constexpr auto gpu_event_destroy = ISTHMUS_P2P_NATIVE(EventDestroy);
constexpr auto gpu_stream_wait = ISTHMUS_P2P_NATIVE(StreamWaitEvent);
constexpr auto gpu_ipc_export = ISTHMUS_P2P_NATIVE(IpcGetMemHandle);
constexpr auto gpu_ipc_close = ISTHMUS_P2P_NATIVE(IpcCloseMemHandle);
constexpr auto gpu_bus_id = ISTHMUS_P2P_NATIVE(DeviceGetPCIBusId);
constexpr auto gpu_can_access_peer = ISTHMUS_P2P_NATIVE(DeviceCanAccessPeer);

// Makes a device current for a scope.
struct linked_runtime {
  static gpu_error get_device(int* device) { return ISTHMUS_P2P_NATIVE(GetDevice)(device); }
  static gpu_error set_device(int device) { return gpu_set_device(device); }
};
inline constexpr linked_runtime linked{};
class device_guard : public scoped_device<linked_runtime> {
 public:
  explicit device_guard(int device) : scoped_device(linked, device) {}
};

inline gpu_error gpu_event_create(gpu_event* event) {
  return ISTHMUS_P2P_NATIVE(EventCreateWithFlags)(event, ISTHMUS_P2P_NATIVE(EventDisableTiming));
}
inline gpu_error gpu_copy(void* destination, const void* source, std::size_t bytes) {
  return ISTHMUS_P2P_NATIVE(Memcpy)(destination, source, bytes, ISTHMUS_P2P_NATIVE(MemcpyDefault));
}
inline gpu_error gpu_ipc_open(void** pointer, gpu_ipc_handle handle) {
  return ISTHMUS_P2P_NATIVE(IpcOpenMemHandle)(pointer, handle, ISTHMUS_P2P_NATIVE(IpcMemLazyEnablePeerAccess));
}
inline int gpu_ordinal(const char* bus_id) {  // -1: this process does not see the device
  int device = -1;
  if (ISTHMUS_P2P_NATIVE(DeviceGetByPCIBusId)(&device, bus_id) == gpu_success) return device;
  (void)ISTHMUS_P2P_NATIVE(GetLastError)();  // clear the error, which the application must not see
  return -1;
}
inline gpu_error gpu_multiprocessors(int device, int* count) {
#if ISTHMUS_P2P_HIP
  return hipDeviceGetAttribute(count, hipDeviceAttributeMultiprocessorCount, device);
#else
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
#endif
}
inline gpu_error gpu_enable_peer(int peer) {
  const gpu_error code = ISTHMUS_P2P_NATIVE(DeviceEnablePeerAccess)(peer, 0);
  if (code != ISTHMUS_P2P_NATIVE(ErrorPeerAccessAlreadyEnabled)) return code;
  (void)ISTHMUS_P2P_NATIVE(GetLastError)();  // clear the error, which the application must not see
  return gpu_success;
}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel* kernel) {
  ISTHMUS_P2P_NATIVE(FuncAttributes) attributes;
  return ISTHMUS_P2P_NATIVE(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
}

// The rest differs in more than the prefix:
//
// gpu_malloc: other devices write to this memory while a kernel reads it, so this device must not cache it.
// gpu_host_alloc: pinned memory that all devices can access.
// gpu_launch_kernel: `can_start_early`: the kernel may be launched while the previous kernel of the stream finishes
//   (programmatic dependent launch). It then calls wait_for_earlier_kernels before it reads or writes anything. Only
//   code compiled for Hopper or later can wait this way: see gpu_supports_early_start.
// gpu_supports_early_start: true if the code that runs on the current device supports it. All kernels are compiled
//   for the same architectures.
// gpu_allow_memory (only CUDA): loads a kernel that is launched with so many bytes of dynamic_memory. Fails if the device
//   has less.
#if ISTHMUS_P2P_HIP

inline gpu_error gpu_malloc(void** pointer, std::size_t bytes) {
  return hipExtMallocWithFlags(pointer, bytes, hipDeviceMallocFinegrained);
}
inline gpu_error gpu_host_alloc(void** pointer, std::size_t bytes) {
  return hipHostMalloc(pointer, bytes, hipHostMallocPortable | hipHostMallocMapped);
}
inline gpu_error gpu_host_free(void* pointer) { return hipHostFree(pointer); }

template <typename Arguments>
gpu_error gpu_launch_kernel(void (*kernel)(Arguments), dim3 blocks, dim3 threads, const Arguments& arguments,
                            gpu_stream stream, bool /*can_start_early*/, unsigned memory_bytes) {
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads, pointers, memory_bytes,
                         stream);
}
template <typename Kernel>
bool gpu_supports_early_start(Kernel*) {
  return false;
}

#else

inline gpu_error gpu_malloc(void** pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
inline gpu_error gpu_host_alloc(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}
inline gpu_error gpu_host_free(void* pointer) { return cudaFreeHost(pointer); }

template <typename Arguments>
gpu_error gpu_launch_kernel(void (*kernel)(Arguments), dim3 blocks, dim3 threads, const Arguments& arguments,
                            gpu_stream stream, bool can_start_early, unsigned memory_bytes) {
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = memory_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_start_early ? 1 : 0;
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
}
template <typename Kernel>
bool gpu_supports_early_start(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}
template <typename Kernel>
gpu_error gpu_allow_memory(Kernel* kernel, unsigned bytes) {
  const gpu_error code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) (void)cudaGetLastError();  // clear the error, which the application must not see
  return code == cudaSuccess ? gpu_load_kernel(kernel) : code;
}

#endif

}  // namespace isthmus::p2p
