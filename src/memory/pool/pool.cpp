#include "memory/pool/pool.hpp"

#include <exception>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "memory/pool/umf_library.hpp"

namespace isthmus {
namespace {

constexpr std::size_t alignment = 256;
// CUDA maps memory in units of 2 MiB, so smaller slabs would waste memory.
constexpr std::size_t slab_bytes = std::size_t{2} << 20U;
// Number of empty slabs per size that UMF keeps. Additional empty slabs go to m_unused_blocks.
constexpr std::size_t slabs_per_size = 1;

// The exception of a callback. UMF is a C library, so exceptions must not pass through it.
thread_local std::exception_ptr pending_exception;

}  // namespace

struct memory_pool::callbacks {
  static memory_pool& pool_of(void* provider) { return *static_cast<memory_pool*>(provider); }

  static umf::result initialize(const void* pool, void** provider) {
    *provider = const_cast<void*>(pool);
    return umf::result::success;
  }
  static umf::result finalize(void*) { return umf::result::success; }

  static umf::result alloc(void* provider, std::size_t bytes, std::size_t, void** pointer) {
    try {
      *pointer = pool_of(provider).allocate_slab(bytes);
      return umf::result::success;
    } catch (...) {
      pending_exception = std::current_exception();
      return umf::result::provider_specific;
    }
  }

  static umf::result free(void* provider, void* pointer, std::size_t bytes) {
    try {
      pool_of(provider).free_slab(pointer, bytes);
      return umf::result::success;
    } catch (...) {
      pending_exception = std::current_exception();
      return umf::result::provider_specific;
    }
  }

  static umf::result last_native_error(void*, const char** text, std::int32_t* code) {
    *text = "";
    *code = 0;
    return umf::result::success;
  }
  // Page sizes reported to UMF: the alignment that every source guarantees.
  static umf::result recommended_page_size(void*, std::size_t, std::size_t* bytes) {
    *bytes = slab_bytes;
    return umf::result::success;
  }
  static umf::result min_page_size(void*, const void*, std::size_t* bytes) {
    *bytes = alignment;
    return umf::result::success;
  }
  static umf::result name(void*, const char** text) {
    *text = "isthmus";
    return umf::result::success;
  }

  static const umf::provider_functions* table() {
    static const umf::provider_functions operations = [] {
      umf::provider_functions result{};
      result.version = umf::version_1_0;  // uses no members added in newer versions
      result.initialize = &initialize;
      result.finalize = &finalize;
      result.alloc = &alloc;
      result.free = &free;
      result.last_native_error = &last_native_error;
      result.recommended_page_size = &recommended_page_size;
      result.min_page_size = &min_page_size;
      result.name = &name;
      return result;
    }();
    return &operations;
  }
};

std::unique_ptr<memory_pool> memory_pool::create(memory_source& source, std::uint64_t max_bytes,
                                                 std::uint64_t keep_bytes, std::string& reason) {
  const umf_library* umf = umf_library::get(reason);
  if (umf == nullptr) return nullptr;
  std::unique_ptr<memory_pool> pool(new memory_pool(*umf, source, max_bytes, keep_bytes));
  return pool->open(reason) ? std::move(pool) : nullptr;
}

memory_pool::memory_pool(const umf_library& umf, memory_source& source, std::uint64_t max_bytes,
                         std::uint64_t keep_bytes)
    : m_umf(umf), m_source(source), m_max_bytes(max_bytes), m_keep_bytes(keep_bytes) {}

bool memory_pool::open(std::string& reason) {
  umf::parameters params = nullptr;
  umf::result result = m_umf.provider_create(callbacks::table(), this, &m_provider);
  if (result == umf::result::success) result = m_umf.disjoint_params_create(&params);
  if (result == umf::result::success) {
    result = m_umf.disjoint_set_slab_min_size(params, slab_bytes);
    if (result == umf::result::success) result = m_umf.disjoint_set_max_poolable_size(params, m_max_bytes);
    if (result == umf::result::success) result = m_umf.disjoint_params_set_capacity(params, slabs_per_size);
    if (result == umf::result::success) result = m_umf.disjoint_set_min_bucket_size(params, alignment);
    // block_table records the pool of each block, so UMF does not need to track addresses.
    if (result == umf::result::success)
      result = m_umf.pool_create(m_umf.disjoint_pool_ops(), m_provider, params, umf::pool_disables_tracking,
                                 &m_pool);
    m_umf.disjoint_params_destroy(params);
  }
  if (result != umf::result::success)
    reason = fmt::format("UMF's disjoint pool failed with UMF result {}", static_cast<int>(result));
  return result == umf::result::success;
}

memory_pool::~memory_pool() {
  if (m_pool != nullptr) m_umf.pool_destroy(m_pool);
  if (m_provider != nullptr) m_umf.provider_destroy(m_provider);
  try {
    release_unused();
  } catch (const error& failure) {
    log(log_level::warning, "memory: a pool could not return all of its memory: {}", failure.what());
  }
}

void* memory_pool::allocate(std::uint64_t bytes) {
  pending_exception = nullptr;
  void* pointer = m_umf.pool_aligned_malloc(m_pool, bytes, alignment);
  if (pointer != nullptr) return pointer;
  if (pending_exception) std::rethrow_exception(std::exchange(pending_exception, nullptr));
  throw make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE,
                   fmt::format("UMF's pool could not allocate {} bytes", bytes));
}

void memory_pool::free(void* pointer) {
  const umf::result result = m_umf.pool_free(m_pool, pointer);
  if (result != umf::result::success)
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, fmt::format("UMF's pool could not free {}", pointer),
                     "", static_cast<std::int64_t>(result));
}

void memory_pool::trim() {
  if (m_umf.pool_trim_memory != nullptr) m_umf.pool_trim_memory(m_pool, 0);
  release_unused();
}

memory_pool::usage memory_pool::current_usage() const {
  const std::lock_guard lock(m_mutex);
  return {m_reserved_bytes, m_unused_bytes};
}

void* memory_pool::allocate_slab(std::uint64_t bytes) {
  {
    const std::lock_guard lock(m_mutex);
    const auto position = m_unused_blocks.find(bytes);
    if (position != m_unused_blocks.end() && !position->second.empty()) {
      void* pointer = position->second.back();
      position->second.pop_back();
      m_unused_bytes -= bytes;
      return pointer;
    }
  }
  void* pointer = m_source.allocate(bytes);
  const std::lock_guard lock(m_mutex);
  m_reserved_bytes += bytes;
  return pointer;
}

void memory_pool::free_slab(void* pointer, std::uint64_t bytes) {
  {
    const std::lock_guard lock(m_mutex);
    if (m_unused_bytes + bytes <= m_keep_bytes) {
      m_unused_blocks[bytes].push_back(pointer);
      m_unused_bytes += bytes;
      return;
    }
    m_reserved_bytes -= bytes;
  }
  m_source.free(pointer, bytes);
}

void memory_pool::release_unused() {
  for (;;) {
    void* pointer = nullptr;
    std::uint64_t bytes = 0;
    {
      const std::lock_guard lock(m_mutex);
      while (!m_unused_blocks.empty() && m_unused_blocks.rbegin()->second.empty())
        m_unused_blocks.erase(std::prev(m_unused_blocks.end()));
      if (m_unused_blocks.empty()) return;
      bytes = m_unused_blocks.rbegin()->first;
      pointer = m_unused_blocks.rbegin()->second.back();
      m_unused_blocks.rbegin()->second.pop_back();
      m_unused_bytes -= bytes;
      m_reserved_bytes -= bytes;
    }
    m_source.free(pointer, bytes);
  }
}

}  // namespace isthmus
