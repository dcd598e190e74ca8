// Intel's Unified Memory Framework (UMF), loaded at run time. Optional.
#pragma once

#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>
#include <umf/providers/provider_level_zero.h>
#include <umf/providers/provider_os_memory.h>

#include <string>

// The functions of libumf.so.1 that Isthmus calls: X(member, name without "umf"). OPTIONAL functions are null if the
// library is too old: UMF 1.1 has introduced PoolTrimMemory.
#define ISTHMUS_UMF_FUNCTIONS(X, OPTIONAL)                                \
  X(provider_create, MemoryProviderCreate)                                \
  X(provider_destroy, MemoryProviderDestroy)                              \
  X(provider_alloc, MemoryProviderAlloc)                                  \
  X(provider_free, MemoryProviderFree)                                    \
  X(provider_last_native_error, MemoryProviderGetLastNativeError)         \
  X(pool_create, PoolCreate)                                              \
  X(pool_destroy, PoolDestroy)                                            \
  X(pool_aligned_malloc, PoolAlignedMalloc)                               \
  X(pool_free, PoolFree)                                                  \
  OPTIONAL(pool_trim_memory, PoolTrimMemory)                              \
  X(disjoint_pool_ops, DisjointPoolOps)                                   \
  X(disjoint_params_create, DisjointPoolParamsCreate)                     \
  X(disjoint_params_destroy, DisjointPoolParamsDestroy)                   \
  X(disjoint_set_slab_min_size, DisjointPoolParamsSetSlabMinSize)         \
  X(disjoint_set_max_poolable_size, DisjointPoolParamsSetMaxPoolableSize) \
  X(disjoint_params_set_capacity, DisjointPoolParamsSetCapacity)          \
  X(disjoint_set_min_bucket_size, DisjointPoolParamsSetMinBucketSize)     \
  X(os_ops, OsMemoryProviderOps)                                          \
  X(os_params_create, OsMemoryProviderParamsCreate)                       \
  X(os_params_destroy, OsMemoryProviderParamsDestroy)                     \
  X(cuda_ops, CUDAMemoryProviderOps)                                      \
  X(cuda_params_create, CUDAMemoryProviderParamsCreate)                   \
  X(cuda_params_destroy, CUDAMemoryProviderParamsDestroy)                 \
  X(cuda_set_context, CUDAMemoryProviderParamsSetContext)                 \
  X(cuda_set_device, CUDAMemoryProviderParamsSetDevice)                   \
  X(cuda_set_memory_type, CUDAMemoryProviderParamsSetMemoryType)          \
  X(level_zero_ops, LevelZeroMemoryProviderOps)                           \
  X(level_zero_params_create, LevelZeroMemoryProviderParamsCreate)        \
  X(level_zero_params_destroy, LevelZeroMemoryProviderParamsDestroy)      \
  X(level_zero_set_context, LevelZeroMemoryProviderParamsSetContext)      \
  X(level_zero_set_device, LevelZeroMemoryProviderParamsSetDevice)        \
  X(level_zero_set_memory_type, LevelZeroMemoryProviderParamsSetMemoryType)

namespace isthmus {

// The functions of libumf.so.1 that Isthmus calls, named without the prefix "umf".
struct umf_library {
  // Returns the library of this process, which the first call loads. If it is not available, returns nullptr
  // and sets `reason`.
  static const umf_library* get(std::string& reason);

#define ISTHMUS_UMF_MEMBER(member, name) decltype(&umf##name) member = nullptr;
  ISTHMUS_UMF_FUNCTIONS(ISTHMUS_UMF_MEMBER, ISTHMUS_UMF_MEMBER)
#undef ISTHMUS_UMF_MEMBER

  std::string path;
};

}  // namespace isthmus
