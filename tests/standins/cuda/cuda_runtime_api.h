// The part of the CUDA runtime's C interface that libstandin_device.so implements, for the programs of
// tests/gpu on machines without CUDA.
#ifndef STANDIN_CUDA_RUNTIME_API_H
#define STANDIN_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int cudaError_t;
typedef void* cudaStream_t;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum { cudaSuccess = 0, cudaStreamNonBlocking = 1 };

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
const char* cudaGetErrorString(cudaError_t error);

#ifdef __cplusplus
}
#endif
#endif
