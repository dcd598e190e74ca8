// Portability layer of the peer-memory kernels for CUDA C++ and HIP: the runtime calls that the backend makes,
// and the few device instructions that the two languages spell differently.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime.h>
#define ISTHMUS_P2P_HIP 1
#define ISTHMUS_P2P_PLATFORM ISTHMUS_PLATFORM_HIP
#else
#include <cuda_runtime.h>
#define ISTHMUS_P2P_HIP 0
#define ISTHMUS_P2P_PLATFORM ISTHMUS_PLATFORM_CUDA
#endif

namespace isthmus::p2p {

#if ISTHMUS_P2P_HIP

using gpu_stream = hipStream_t;
using gpu_error = hipError_t;
using gpu_ipc_handle = hipIpcMemHandle_t;
constexpr gpu_error gpu_success = hipSuccess;
constexpr gpu_error gpu_invalid_value = hipErrorInvalidValue;
inline const char* gpu_error_text(gpu_error code) { return hipGetErrorString(code); }
inline gpu_error gpu_get_device(int* device) { return hipGetDevice(device); }
inline gpu_error gpu_set_device(int device) { return hipSetDevice(device); }
// Other devices write to this memory while a kernel reads it, so this device must not cache it.
inline gpu_error gpu_malloc(void** pointer, std::size_t bytes) {
  return hipExtMallocWithFlags(pointer, bytes, hipDeviceMallocFinegrained);
}
inline gpu_error gpu_free(void* pointer) { return hipFree(pointer); }
inline gpu_error gpu_memset(void* pointer, int value, std::size_t bytes) {
  return hipMemset(pointer, value, bytes);
}
inline gpu_error gpu_copy(void* destination, const void* source, std::size_t bytes) {
  return hipMemcpy(destination, source, bytes, hipMemcpyDefault);
}
inline gpu_error gpu_launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                                   gpu_stream stream, bool /*early*/) {
  return hipLaunchKernel(kernel, blocks, threads, arguments, 0, stream);
}
template <typename Kernel>
bool gpu_supports_early_start(Kernel*) {
  return false;
}
__device__ inline void wait_for_earlier_kernels() {}
inline gpu_error gpu_synchronize_device() { return hipDeviceSynchronize(); }
inline gpu_error gpu_synchronize_stream(gpu_stream stream) { return hipStreamSynchronize(stream); }
inline gpu_error gpu_memset_async(void* pointer, int value, std::size_t bytes, gpu_stream stream) {
  return hipMemsetAsync(pointer, value, bytes, stream);
}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel* kernel) {
  hipFuncAttributes attributes;
  return hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}
inline gpu_error gpu_host_alloc(void** pointer, std::size_t bytes) {
  return hipHostMalloc(pointer, bytes, hipHostMallocPortable | hipHostMallocMapped);
}
inline gpu_error gpu_host_free(void* pointer) { return hipHostFree(pointer); }
inline gpu_error gpu_ipc_export(gpu_ipc_handle* handle, void* pointer) {
  return hipIpcGetMemHandle(handle, pointer);
}
inline gpu_error gpu_ipc_open(void** pointer, gpu_ipc_handle handle) {
  return hipIpcOpenMemHandle(pointer, handle, hipIpcMemLazyEnablePeerAccess);
}
inline gpu_error gpu_ipc_close(void* pointer) { return hipIpcCloseMemHandle(pointer); }
inline gpu_error gpu_bus_id(char* text, int bytes, int device) {
  return hipDeviceGetPCIBusId(text, bytes, device);
}
inline int gpu_ordinal(const char* bus_id) {  // -1: this process does not see the device
  int device = -1;
  if (hipDeviceGetByPCIBusId(&device, bus_id) == hipSuccess) return device;
  (void)hipGetLastError();  // clear the error, which the application must not see
  return -1;
}
inline gpu_error gpu_can_access_peer(int* is_accessible, int device, int peer) {
  return hipDeviceCanAccessPeer(is_accessible, device, peer);
}
inline gpu_error gpu_enable_peer(int peer) {
  const gpu_error code = hipDeviceEnablePeerAccess(peer, 0);
  if (code != hipErrorPeerAccessAlreadyEnabled) return code;
  (void)hipGetLastError();  // clear the error, which the application must not see
  return gpu_success;
}

// Four words that another device may be writing. Each word is read at once; the four are not one unit.
__device__ inline uint4 load_remote(const uint4* source) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(source);
  uint4 value;
  value.x = __hip_atomic_load(words + 0, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.y = __hip_atomic_load(words + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.z = __hip_atomic_load(words + 2, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.w = __hip_atomic_load(words + 3, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  return value;
}

__device__ inline void store_remote(uint4* destination, uint4 value) {
  auto* words = reinterpret_cast<std::uint32_t*>(destination);
  __hip_atomic_store(words + 0, value.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 1, value.y, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 2, value.z, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 3, value.w, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ inline std::uint32_t load_flag(const std::uint32_t* source) {
  return __hip_atomic_load(source, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ inline void store_flag(std::uint32_t* destination, std::uint32_t value) {
  __hip_atomic_store(destination, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Nanoseconds, from a counter with 100 MHz. The instruction does not exist in the host compilation pass.
#if defined(__HIP_DEVICE_COMPILE__)
__device__ inline std::uint64_t now_ns() { return __builtin_amdgcn_s_memrealtime() * 10; }
#else
__device__ inline std::uint64_t now_ns() { return 0; }
#endif

#else

using gpu_stream = cudaStream_t;
using gpu_error = cudaError_t;
using gpu_ipc_handle = cudaIpcMemHandle_t;
constexpr gpu_error gpu_success = cudaSuccess;
constexpr gpu_error gpu_invalid_value = cudaErrorInvalidValue;
inline const char* gpu_error_text(gpu_error code) { return cudaGetErrorString(code); }
inline gpu_error gpu_get_device(int* device) { return cudaGetDevice(device); }
inline gpu_error gpu_set_device(int device) { return cudaSetDevice(device); }
inline gpu_error gpu_malloc(void** pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
inline gpu_error gpu_free(void* pointer) { return cudaFree(pointer); }
inline gpu_error gpu_memset(void* pointer, int value, std::size_t bytes) {
  return cudaMemset(pointer, value, bytes);
}
inline gpu_error gpu_copy(void* destination, const void* source, std::size_t bytes) {
  return cudaMemcpy(destination, source, bytes, cudaMemcpyDefault);
}
// `can_start_early`: the kernel may be launched while the previous kernel of the stream finishes (programmatic
// dependent launch). It then calls wait_for_earlier_kernels before it reads or writes anything. Only code
// compiled for Hopper or later can wait this way: see gpu_supports_early_start.
inline gpu_error gpu_launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                                   gpu_stream stream, bool can_start_early) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_start_early ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
// Returns true if the code that runs on the current device supports an early start (`can_start_early` above).
// All kernels are compiled for the same architectures.
template <typename Kernel>
bool gpu_supports_early_start(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
inline gpu_error gpu_synchronize_device() { return cudaDeviceSynchronize(); }
inline gpu_error gpu_synchronize_stream(gpu_stream stream) { return cudaStreamSynchronize(stream); }
inline gpu_error gpu_memset_async(void* pointer, int value, std::size_t bytes, gpu_stream stream) {
  return cudaMemsetAsync(pointer, value, bytes, stream);
}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}
inline gpu_error gpu_host_alloc(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}
inline gpu_error gpu_host_free(void* pointer) { return cudaFreeHost(pointer); }
inline gpu_error gpu_ipc_export(gpu_ipc_handle* handle, void* pointer) {
  return cudaIpcGetMemHandle(handle, pointer);
}
inline gpu_error gpu_ipc_open(void** pointer, gpu_ipc_handle handle) {
  return cudaIpcOpenMemHandle(pointer, handle, cudaIpcMemLazyEnablePeerAccess);
}
inline gpu_error gpu_ipc_close(void* pointer) { return cudaIpcCloseMemHandle(pointer); }
inline gpu_error gpu_bus_id(char* text, int bytes, int device) {
  return cudaDeviceGetPCIBusId(text, bytes, device);
}
inline int gpu_ordinal(const char* bus_id) {  // -1: this process does not see the device
  int device = -1;
  if (cudaDeviceGetByPCIBusId(&device, bus_id) == cudaSuccess) return device;
  (void)cudaGetLastError();  // clear the error, which the application must not see
  return -1;
}
inline gpu_error gpu_can_access_peer(int* is_accessible, int device, int peer) {
  return cudaDeviceCanAccessPeer(is_accessible, device, peer);
}
inline gpu_error gpu_enable_peer(int peer) {
  const gpu_error code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code != cudaErrorPeerAccessAlreadyEnabled) return code;
  (void)cudaGetLastError();  // clear the error, which the application must not see
  return gpu_success;
}

// Four words that another device may be writing. Each word is read at once; the four are not one unit.
__device__ inline uint4 load_remote(const uint4* source) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

__device__ inline void store_remote(uint4* destination, uint4 value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};"
               :
               : "l"(destination), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline std::uint32_t load_flag(const std::uint32_t* source) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}
__device__ inline void store_flag(std::uint32_t* destination, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(destination), "r"(value) : "memory");
}

__device__ inline std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

#endif

}  // namespace isthmus::p2p
