// Plain memory of one device: its providers in the configured order, their pools, and the blocks they made.
#pragma once

#include <isthmus/memory.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "memory/pool/block_table.hpp"
#include "memory/pool/memory_source.hpp"
#include "memory/pool/pool.hpp"
#include "selection/selection.hpp"

namespace isthmus {

// Opens a provider by its name; nullptr and `reason` where it can't be had.
using source_opener =
    std::function<std::unique_ptr<memory_source>(const std::string& name, std::string& reason)>;

// "umf", "direct" and what front ends registered.
source_opener make_source_opener(isthmus_device device, void* native_context);

class device_memory {
 public:
  device_memory(isthmus_device device, selection::memory_settings settings, source_opener open);
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  // As the functions of memory.h say; `device` is the caller's, which the block's is checked against. Any
  // thread.
  void* allocate(std::uint64_t bytes, bool bypass_pool);
  void* allocate_growable(std::uint64_t bytes);
  void* resize(isthmus_device device, void* pointer, std::uint64_t bytes);
  void free(void* pointer) { free(m_device, pointer); }
  void trim();
  nlohmann::json explain();

  // The block knows its owner; `device` is only what the caller believes.
  static void free(isthmus_device device, void* pointer);

  isthmus_device device() const { return m_device; }
  const std::string& provider_name(const memory_block& block) const;

 private:
  // One entry of the order. Opened when an allocation first comes to it.
  struct provider;
  struct provider_failures;

  void open(provider& entry);
  void open_pool(provider& entry);
  template <typename Allocate>
  void* allocate_with(Allocate&& allocate_block, std::uint64_t bytes, bool reports_fallback);
  void* allocate_from(provider& entry, std::uint64_t bytes, bool bypass_pool, bool& is_pooled);
  void* allocate_mapped_from(provider& entry, const memory_block* old, std::uint64_t bytes);
  void* resize_growable(memory_block block, std::uint64_t bytes);
  void log_fallback(const provider& used, const provider_failures& failures);
  void release(const memory_block& block);
  void copy(void* to, const void* from, std::uint64_t bytes, const std::string& provider);

  const isthmus_device m_device;
  const selection::memory_settings m_settings;
  const source_opener m_open;
  std::mutex m_opening;
  std::vector<std::unique_ptr<provider>> m_providers;
  std::atomic<std::uint64_t> m_warned{0};  // bit i: a fallback to provider i was logged
};

}  // namespace isthmus
