// Plain memory of one device: its providers in the configured order, their pools and their blocks.
//
// Thread safety: all functions can be called from any thread.
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

// Opens a provider by name. Returns nullptr and sets `reason` if the provider is not available.
using source_opener =
    std::function<std::unique_ptr<memory_source>(const std::string& name, std::string& reason)>;

// Opens "umf", "direct" and the providers that front ends registered.
source_opener make_source_opener(isthmus_device device, void* native_context);

class device_memory {
 public:
  device_memory(isthmus_device device, selection::memory_settings settings, source_opener open);
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  // See memory.h. The block must belong to `device`.
  void* allocate(std::uint64_t bytes, bool bypass_pool);
  void* allocate_growable(std::uint64_t bytes);
  void* resize(isthmus_device device, void* pointer, std::uint64_t bytes);
  void free(void* pointer) { free(m_device, pointer); }
  void trim();
  nlohmann::json explain();

  // The owner is taken from the block; `device` is only checked against it.
  static void free(isthmus_device device, void* pointer);

  isthmus_device device() const { return m_device; }
  const std::string& provider_name(const memory_block& block) const;

 private:
  // One entry of the provider order. Opened when an allocation first reaches it.
  struct provider;
  struct provider_failures;

  void open(provider& entry);
  void open_pool(provider& entry);
  template <typename Allocate>
  void* allocate_with(Allocate&& allocate_block, std::uint64_t bytes, bool reports_fallback);
  void* allocate_from(provider& entry, std::uint64_t bytes, bool bypass_pool, bool& is_pooled);
  void* allocate_mapped_from(provider& entry, const memory_block* old, std::uint64_t bytes);
  void* resize_growable(memory_block block, std::uint64_t bytes);
  void log_fallback(const provider& selected_provider, const provider_failures& failures);
  void release(const memory_block& block);
  void copy(void* destination, const void* source, std::uint64_t bytes, const std::string& provider);

  const isthmus_device m_device;
  const selection::memory_settings m_settings;
  const source_opener m_open;
  std::mutex m_opening;
  std::vector<std::unique_ptr<provider>> m_providers;
  std::atomic<std::uint64_t> m_logged_fallbacks{0};  // bit i: a fallback to provider i was logged
};

}  // namespace isthmus
