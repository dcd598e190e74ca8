#include "memory/pool/umf_library.hpp"

#include "base/dynamic_library.hpp"

namespace isthmus {
namespace {

void look_up(symbol_loader& loader, umf_library& table) {
  loader.need(table.provider_create, "MemoryProviderCreate");
  loader.need(table.provider_destroy, "MemoryProviderDestroy");
  loader.need(table.provider_alloc, "MemoryProviderAlloc");
  loader.need(table.provider_free, "MemoryProviderFree");
  loader.need(table.provider_last_native_error, "MemoryProviderGetLastNativeError");
  loader.need(table.pool_create, "PoolCreate");
  loader.need(table.pool_destroy, "PoolDestroy");
  loader.need(table.pool_aligned_malloc, "PoolAlignedMalloc");
  loader.need(table.pool_free, "PoolFree");
  loader.want(table.pool_trim_memory, "PoolTrimMemory");
  loader.need(table.disjoint_pool_ops, "DisjointPoolOps");
  loader.need(table.disjoint_params_create, "DisjointPoolParamsCreate");
  loader.need(table.disjoint_params_destroy, "DisjointPoolParamsDestroy");
  loader.need(table.disjoint_set_slab_min_size, "DisjointPoolParamsSetSlabMinSize");
  loader.need(table.disjoint_set_max_poolable_size, "DisjointPoolParamsSetMaxPoolableSize");
  loader.need(table.disjoint_set_capacity, "DisjointPoolParamsSetCapacity");
  loader.need(table.disjoint_set_min_bucket_size, "DisjointPoolParamsSetMinBucketSize");
  loader.need(table.os_ops, "OsMemoryProviderOps");
  loader.need(table.os_params_create, "OsMemoryProviderParamsCreate");
  loader.need(table.os_params_destroy, "OsMemoryProviderParamsDestroy");
  loader.need(table.cuda_ops, "CUDAMemoryProviderOps");
  loader.need(table.cuda_params_create, "CUDAMemoryProviderParamsCreate");
  loader.need(table.cuda_params_destroy, "CUDAMemoryProviderParamsDestroy");
  loader.need(table.cuda_set_context, "CUDAMemoryProviderParamsSetContext");
  loader.need(table.cuda_set_device, "CUDAMemoryProviderParamsSetDevice");
  loader.need(table.cuda_set_memory_type, "CUDAMemoryProviderParamsSetMemoryType");
  loader.need(table.level_zero_ops, "LevelZeroMemoryProviderOps");
  loader.need(table.level_zero_params_create, "LevelZeroMemoryProviderParamsCreate");
  loader.need(table.level_zero_params_destroy, "LevelZeroMemoryProviderParamsDestroy");
  loader.need(table.level_zero_set_context, "LevelZeroMemoryProviderParamsSetContext");
  loader.need(table.level_zero_set_device, "LevelZeroMemoryProviderParamsSetDevice");
  loader.need(table.level_zero_set_memory_type, "LevelZeroMemoryProviderParamsSetMemoryType");
}

struct loaded {
  umf_library table{};
  std::string reason;

  loaded() {
    // PyPI's wheel puts it into <environment>/lib, two folders above site-packages; a SYCL program has it
    // already, and the dynamic linker then finds it by its name.
    const search_request request{.variable = "ISTHMUS_UMF_LIBRARY",
                                 .names = {"libumf.so.1"},
                                 .wheel_folders = {"../.."},
                                 .system_folders = {}};
    const dynamic_library library = dynamic_library::open(request, reason);
    if (!library) {
      reason = "UMF could not be loaded (pip install umf): " + reason;
      return;
    }
    symbol_loader loader(library, "umf");
    look_up(loader, table);
    table.path = library.path();
    if (!loader.missing().empty())
      reason = table.path + " lacks " + loader.missing() + " (UMF 1.0 or newer has it)";
  }
};

}  // namespace

const umf_library* umf_library::get(std::string& reason) {
  static const loaded& once = *new loaded;  // blocks may be freed after static objects are gone
  reason = once.reason;
  return once.reason.empty() ? &once.table : nullptr;
}

}  // namespace isthmus
