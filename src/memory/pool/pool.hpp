// UMF's disjoint pool on top of a memory_source, with a cache of unused blocks of the source.
//
// Thread safety: all functions can be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/pool/memory_source.hpp"

namespace isthmus {

struct umf_library;

class memory_pool {
 public:
  // Returns nullptr and sets `reason` if UMF is not available. The pool serves blocks of up to `max_bytes` and
  // caches at most `keep_bytes` of unused blocks of the source.
  static std::unique_ptr<memory_pool> create(memory_source& source, std::uint64_t max_bytes,
                                             std::uint64_t keep_bytes, std::string& reason);
  ~memory_pool();
  memory_pool(const memory_pool&) = delete;
  memory_pool& operator=(const memory_pool&) = delete;

  // Allocates a block of 0 < bytes <= max_bytes(), aligned to 256. Throws the error of the source.
  void* allocate(std::uint64_t bytes);
  void free(void* pointer);
  std::uint64_t max_bytes() const { return m_max_bytes; }
  std::uint64_t keep_bytes() const { return m_keep_bytes; }

  // Returns unused memory to the source.
  void trim();

  struct usage {
    std::uint64_t reserved_bytes;  // allocated from the source
    std::uint64_t unused_bytes;    // of these: cached and unused, not counting empty slabs in UMF
  };
  usage current_usage() const;

 private:
  struct callbacks;  // memory provider callbacks of UMF's pool
  memory_pool(const umf_library& umf, memory_source& source, std::uint64_t max_bytes, std::uint64_t keep_bytes);
  bool open(std::string& reason);
  void* allocate_slab(std::uint64_t bytes);
  void free_slab(void* pointer, std::uint64_t bytes);
  void release_unused();

  const umf_library& m_umf;
  memory_source& m_source;
  const std::uint64_t m_max_bytes, m_keep_bytes;
  void* m_provider = nullptr;  // UMF handles
  void* m_pool = nullptr;

  mutable std::mutex m_mutex;
  // UMF's pool keeps only one empty slab per size. Without this cache, a program that frees many blocks and
  // allocates them again would call the driver for most of them.
  std::map<std::uint64_t, std::vector<void*>> m_unused_blocks;  // by size
  std::uint64_t m_unused_bytes = 0;
  std::uint64_t m_reserved_bytes = 0;
};

}  // namespace isthmus
