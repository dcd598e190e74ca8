#include "memory/pool/umf_library.hpp"

#include "base/dynamic_library.hpp"

namespace isthmus {
namespace {

void load_functions(symbol_loader& loader, umf_library& table) {
  loader.load_required(table.provider_create, "MemoryProviderCreate");
  loader.load_required(table.provider_destroy, "MemoryProviderDestroy");
  loader.load_required(table.provider_alloc, "MemoryProviderAlloc");
  loader.load_required(table.provider_free, "MemoryProviderFree");
  loader.load_required(table.provider_last_native_error, "MemoryProviderGetLastNativeError");
  loader.load_required(table.pool_create, "PoolCreate");
  loader.load_required(table.pool_destroy, "PoolDestroy");
  loader.load_required(table.pool_aligned_malloc, "PoolAlignedMalloc");
  loader.load_required(table.pool_free, "PoolFree");
  loader.load_optional(table.pool_trim_memory, "PoolTrimMemory");
  loader.load_required(table.disjoint_pool_ops, "DisjointPoolOps");
  loader.load_required(table.disjoint_params_create, "DisjointPoolParamsCreate");
  loader.load_required(table.disjoint_params_destroy, "DisjointPoolParamsDestroy");
  loader.load_required(table.disjoint_set_slab_min_size, "DisjointPoolParamsSetSlabMinSize");
  loader.load_required(table.disjoint_set_max_poolable_size, "DisjointPoolParamsSetMaxPoolableSize");
  loader.load_required(table.disjoint_params_set_capacity, "DisjointPoolParamsSetCapacity");
  loader.load_required(table.disjoint_set_min_bucket_size, "DisjointPoolParamsSetMinBucketSize");
  loader.load_required(table.os_ops, "OsMemoryProviderOps");
  loader.load_required(table.os_params_create, "OsMemoryProviderParamsCreate");
  loader.load_required(table.os_params_destroy, "OsMemoryProviderParamsDestroy");
  loader.load_required(table.cuda_ops, "CUDAMemoryProviderOps");
  loader.load_required(table.cuda_params_create, "CUDAMemoryProviderParamsCreate");
  loader.load_required(table.cuda_params_destroy, "CUDAMemoryProviderParamsDestroy");
  loader.load_required(table.cuda_set_context, "CUDAMemoryProviderParamsSetContext");
  loader.load_required(table.cuda_set_device, "CUDAMemoryProviderParamsSetDevice");
  loader.load_required(table.cuda_set_memory_type, "CUDAMemoryProviderParamsSetMemoryType");
  loader.load_required(table.level_zero_ops, "LevelZeroMemoryProviderOps");
  loader.load_required(table.level_zero_params_create, "LevelZeroMemoryProviderParamsCreate");
  loader.load_required(table.level_zero_params_destroy, "LevelZeroMemoryProviderParamsDestroy");
  loader.load_required(table.level_zero_set_context, "LevelZeroMemoryProviderParamsSetContext");
  loader.load_required(table.level_zero_set_device, "LevelZeroMemoryProviderParamsSetDevice");
  loader.load_required(table.level_zero_set_memory_type, "LevelZeroMemoryProviderParamsSetMemoryType");
}

struct library_state {
  umf_library table{};
  std::string reason;

  library_state() {
    // The PyPI wheel installs it in <environment>/lib, two folders above site-packages. In a SYCL program it is
    // already loaded, and the dynamic linker finds it by name.
    const library_search_request request{.variable = "ISTHMUS_UMF_LIBRARY",
                                         .names = {"libumf.so.1"},
                                         .wheel_folders = {"../.."},
                                         .system_folders = {}};
    const dynamic_library library = dynamic_library::open(request, reason);
    if (!library) {
      reason = "UMF could not be loaded (pip install umf): " + reason;
      return;
    }
    symbol_loader loader(library, "umf");
    load_functions(loader, table);
    table.path = library.path();
    if (!loader.first_missing().empty())
      reason = table.path + " lacks " + loader.first_missing() + " (install UMF 1.0 or newer)";
  }
};

}  // namespace

const umf_library* umf_library::get(std::string& reason) {
  static const library_state& instance_storage =
      *new library_state;  // never destroyed: blocks may be freed after static destruction
  reason = instance_storage.reason;
  return instance_storage.reason.empty() ? &instance_storage.table : nullptr;
}

}  // namespace isthmus
