// Intel's Unified Memory Framework (UMF) 1.0 and newer, loaded at run time. Optional. If UMF's headers are installed,
// abi_check_umf.cpp compares the declarations with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace isthmus {
namespace umf {

enum class result : int { success = 0, out_of_host_memory = 1, provider_specific = 2 };

// Opaque handles of UMF.
using provider = void*;
using pool = void*;
using parameters = void*;

// Callbacks of a provider (umf_memory_provider_ops_t).
struct provider_functions {
  std::uint32_t version;
  result (*initialize)(const void* parameters, void** provider);
  result (*finalize)(void* provider);
  result (*alloc)(void* provider, std::size_t bytes, std::size_t alignment, void** pointer);
  result (*free)(void* provider, void* pointer, std::size_t bytes);
  result (*last_native_error)(void* provider, const char** text, std::int32_t* code);
  result (*recommended_page_size)(void* provider, std::size_t bytes, std::size_t* page_bytes);
  result (*min_page_size)(void* provider, const void* pointer, std::size_t* page_bytes);
  result (*name)(void* provider, const char** text);
  void (*optional[13])();  // null: functions that a provider can lack
};

inline constexpr std::uint32_t version_1_0 = 1U << 16U;
inline constexpr std::uint32_t pool_disables_tracking = 1U << 1U;
inline constexpr int device_memory_type = 2;
inline constexpr std::int32_t os_allocation_failed = 1001;

}  // namespace umf

// The functions of libumf.so.1 that Isthmus calls: X(member, name without "umf", result, arguments). OPTIONAL
// functions are null if the library is too old: UMF 1.1 has introduced PoolTrimMemory.
#define ISTHMUS_UMF_FUNCTIONS(X, OPTIONAL)                                                                     \
  X(provider_create, MemoryProviderCreate, umf::result,                                                        \
    (const umf::provider_functions*, const void*, umf::provider*))                                             \
  X(provider_destroy, MemoryProviderDestroy, umf::result, (umf::provider))                                     \
  X(provider_alloc, MemoryProviderAlloc, umf::result, (umf::provider, std::size_t, std::size_t, void**))       \
  X(provider_free, MemoryProviderFree, umf::result, (umf::provider, void*, std::size_t))                       \
  X(provider_last_native_error, MemoryProviderGetLastNativeError, umf::result,                                 \
    (umf::provider, const char**, std::int32_t*))                                                              \
  X(pool_create, PoolCreate, umf::result,                                                                      \
    (const void*, umf::provider, const void*, std::uint32_t, umf::pool*))                                      \
  X(pool_destroy, PoolDestroy, umf::result, (umf::pool))                                                       \
  X(pool_aligned_malloc, PoolAlignedMalloc, void*, (umf::pool, std::size_t, std::size_t))                      \
  X(pool_free, PoolFree, umf::result, (umf::pool, void*))                                                      \
  OPTIONAL(pool_trim_memory, PoolTrimMemory, umf::result, (umf::pool, std::size_t))                            \
  X(disjoint_pool_ops, DisjointPoolOps, const void*, ())                                                       \
  X(disjoint_params_create, DisjointPoolParamsCreate, umf::result, (umf::parameters*))                         \
  X(disjoint_params_destroy, DisjointPoolParamsDestroy, umf::result, (umf::parameters))                        \
  X(disjoint_set_slab_min_size, DisjointPoolParamsSetSlabMinSize, umf::result, (umf::parameters, std::size_t)) \
  X(disjoint_set_max_poolable_size, DisjointPoolParamsSetMaxPoolableSize, umf::result,                         \
    (umf::parameters, std::size_t))                                                                            \
  X(disjoint_params_set_capacity, DisjointPoolParamsSetCapacity, umf::result, (umf::parameters, std::size_t))  \
  X(disjoint_set_min_bucket_size, DisjointPoolParamsSetMinBucketSize, umf::result,                             \
    (umf::parameters, std::size_t))                                                                            \
  X(os_ops, OsMemoryProviderOps, const umf::provider_functions*, ())                                           \
  X(os_params_create, OsMemoryProviderParamsCreate, umf::result, (umf::parameters*))                           \
  X(os_params_destroy, OsMemoryProviderParamsDestroy, umf::result, (umf::parameters))                          \
  X(cuda_ops, CUDAMemoryProviderOps, const umf::provider_functions*, ())                                       \
  X(cuda_params_create, CUDAMemoryProviderParamsCreate, umf::result, (umf::parameters*))                       \
  X(cuda_params_destroy, CUDAMemoryProviderParamsDestroy, umf::result, (umf::parameters))                      \
  X(cuda_set_context, CUDAMemoryProviderParamsSetContext, umf::result, (umf::parameters, void*))               \
  X(cuda_set_device, CUDAMemoryProviderParamsSetDevice, umf::result, (umf::parameters, int))                   \
  X(cuda_set_memory_type, CUDAMemoryProviderParamsSetMemoryType, umf::result, (umf::parameters, int))          \
  X(level_zero_ops, LevelZeroMemoryProviderOps, const umf::provider_functions*, ())                            \
  X(level_zero_params_create, LevelZeroMemoryProviderParamsCreate, umf::result, (umf::parameters*))            \
  X(level_zero_params_destroy, LevelZeroMemoryProviderParamsDestroy, umf::result, (umf::parameters))           \
  X(level_zero_set_context, LevelZeroMemoryProviderParamsSetContext, umf::result, (umf::parameters, void*))    \
  X(level_zero_set_device, LevelZeroMemoryProviderParamsSetDevice, umf::result, (umf::parameters, void*))      \
  X(level_zero_set_memory_type, LevelZeroMemoryProviderParamsSetMemoryType, umf::result, (umf::parameters, int))

// The functions of libumf.so.1 that Isthmus calls, named without the prefix "umf".
struct umf_library {
  // Returns the library of this process, which the first call loads. If it is not available, returns nullptr
  // and sets `reason`.
  static const umf_library* get(std::string& reason);

#define ISTHMUS_UMF_MEMBER(member, name, result, arguments) result(*member) arguments = nullptr;
  ISTHMUS_UMF_FUNCTIONS(ISTHMUS_UMF_MEMBER, ISTHMUS_UMF_MEMBER)
#undef ISTHMUS_UMF_MEMBER

  std::string path;
};

}  // namespace isthmus
