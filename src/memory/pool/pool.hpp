// UMF's disjoint pool over a memory_source, and what it keeps of the source's blocks while they are unused.
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
  // nullptr, and why in `reason`, without UMF. Blocks up to `max_bytes` are taken from the pool; at most
  // `keep_bytes` of the source's blocks are kept while nothing uses them.
  static std::unique_ptr<memory_pool> create(memory_source& source, std::uint64_t max_bytes,
                                             std::uint64_t keep_bytes, std::string& reason);
  ~memory_pool();
  memory_pool(const memory_pool&) = delete;
  memory_pool& operator=(const memory_pool&) = delete;

  // A block of 0 < bytes <= max_bytes(), aligned to 256. Throws what the source threw. Any thread.
  void* allocate(std::uint64_t bytes);
  void free(void* pointer);
  std::uint64_t max_bytes() const { return m_max_bytes; }
  std::uint64_t keep_bytes() const { return m_keep_bytes; }

  // Gives unused memory back to the source.
  void trim();

  struct usage {
    std::uint64_t taken_bytes;   // from the source
    std::uint64_t unused_bytes;  // of these: kept although no block uses them, whole slabs in UMF excepted
  };
  usage used() const;

 private:
  struct callbacks;  // what UMF's pool calls when it wants slabs
  memory_pool(const umf_library& umf, memory_source& source, std::uint64_t max_bytes, std::uint64_t keep_bytes);
  bool open(std::string& reason);
  void* allocate_slab(std::uint64_t bytes);
  void free_slab(void* pointer, std::uint64_t bytes);
  void release_unused();

  const umf_library& m_umf;
  memory_source& m_source;
  const std::uint64_t m_max_bytes, m_keep_bytes;
  void* m_provider = nullptr;  // UMF's handles
  void* m_pool = nullptr;

  mutable std::mutex m_mutex;
  // UMF's pool keeps one empty slab of each small size only, and a program that frees a thousand blocks and
  // allocates them again would go to the driver for most of them.
  std::map<std::uint64_t, std::vector<void*>> m_unused;  // by size
  std::uint64_t m_unused_bytes = 0;
  std::uint64_t m_taken_bytes = 0;
};

}  // namespace isthmus
