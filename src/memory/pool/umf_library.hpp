// Intel's Unified Memory Framework (UMF), loaded at run time. Optional.
#pragma once

#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>
#include <umf/providers/provider_level_zero.h>
#include <umf/providers/provider_os_memory.h>

#include <string>

namespace isthmus {

// The functions of libumf.so.1 that Isthmus calls, named without the prefix "umf".
struct umf_library {
  // Returns the library of this process, which the first call loads. If it is not available, returns nullptr
  // and sets `reason`.
  static const umf_library* get(std::string& reason);

  decltype(&umfMemoryProviderCreate) provider_create;
  decltype(&umfMemoryProviderDestroy) provider_destroy;
  decltype(&umfMemoryProviderAlloc) provider_alloc;
  decltype(&umfMemoryProviderFree) provider_free;
  decltype(&umfMemoryProviderGetLastNativeError) provider_last_native_error;

  decltype(&umfPoolCreate) pool_create;
  decltype(&umfPoolDestroy) pool_destroy;
  decltype(&umfPoolAlignedMalloc) pool_aligned_malloc;
  decltype(&umfPoolFree) pool_free;
  decltype(&umfPoolTrimMemory) pool_trim_memory;  // null before UMF 1.1

  decltype(&umfDisjointPoolOps) disjoint_pool_ops;
  decltype(&umfDisjointPoolParamsCreate) disjoint_params_create;
  decltype(&umfDisjointPoolParamsDestroy) disjoint_params_destroy;
  decltype(&umfDisjointPoolParamsSetSlabMinSize) disjoint_set_slab_min_size;
  decltype(&umfDisjointPoolParamsSetMaxPoolableSize) disjoint_set_max_poolable_size;
  decltype(&umfDisjointPoolParamsSetCapacity) disjoint_params_set_capacity;
  decltype(&umfDisjointPoolParamsSetMinBucketSize) disjoint_set_min_bucket_size;

  decltype(&umfOsMemoryProviderOps) os_ops;
  decltype(&umfOsMemoryProviderParamsCreate) os_params_create;
  decltype(&umfOsMemoryProviderParamsDestroy) os_params_destroy;

  decltype(&umfCUDAMemoryProviderOps) cuda_ops;
  decltype(&umfCUDAMemoryProviderParamsCreate) cuda_params_create;
  decltype(&umfCUDAMemoryProviderParamsDestroy) cuda_params_destroy;
  decltype(&umfCUDAMemoryProviderParamsSetContext) cuda_set_context;
  decltype(&umfCUDAMemoryProviderParamsSetDevice) cuda_set_device;
  decltype(&umfCUDAMemoryProviderParamsSetMemoryType) cuda_set_memory_type;

  decltype(&umfLevelZeroMemoryProviderOps) level_zero_ops;
  decltype(&umfLevelZeroMemoryProviderParamsCreate) level_zero_params_create;
  decltype(&umfLevelZeroMemoryProviderParamsDestroy) level_zero_params_destroy;
  decltype(&umfLevelZeroMemoryProviderParamsSetContext) level_zero_set_context;
  decltype(&umfLevelZeroMemoryProviderParamsSetDevice) level_zero_set_device;
  decltype(&umfLevelZeroMemoryProviderParamsSetMemoryType) level_zero_set_memory_type;

  std::string path;
};

}  // namespace isthmus
