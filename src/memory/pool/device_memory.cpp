#include "memory/pool/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/owned.hpp"

namespace isthmus {

struct device_memory::provider {
  std::string name;
  std::size_t index = 0;
  std::atomic<bool> open{false};
  bool was_tried = false;  // guarded by m_opening, as are the reasons
  std::string reason;      // why the source is not available
  std::string pool_reason;
  std::unique_ptr<memory_source> source;
  std::unique_ptr<memory_pool> pool;
};

// Errors of the providers that were tried before one succeeded.
struct device_memory::provider_failures {
  std::string text;
  bool is_out_of_memory = false;  // at least one provider was out of memory
  std::optional<error> first;

  void add(const std::string& name, const std::string& what) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, what);
  }
};

source_opener make_source_opener(isthmus_device device, void* native_context) {
  return [=](const std::string& name, std::string& reason) {
    if (name == "umf") return open_umf_source(device, native_context, reason);
    if (name == "direct") return open_direct_source(device, native_context, reason);
    return open_registered_source(device, name, reason);
  };
}

namespace {

// The pool should retain blocks that a program frees and allocates again, without starving other users
// of the device.
std::uint64_t default_keep_bytes(isthmus_device device) {
  constexpr std::uint64_t min_bytes = std::uint64_t{1} << 30U;
  constexpr std::uint64_t divisor = 16;
  std::string reason;
  device_driver* const driver = device_driver::get(device.platform, reason);
  if (driver == nullptr || device.ordinal >= driver->device_count()) return min_bytes;
  try {
    return std::max(min_bytes, driver->memory_info(device.ordinal).total_bytes / divisor);
  } catch (const error&) {
    return min_bytes;  // the Level Zero driver does not report free memory
  }
}

}  // namespace

device_memory::device_memory(isthmus_device device, selection::memory_settings settings, source_opener open)
    : m_device(device), m_settings(std::move(settings)), m_open(std::move(open)) {
  for (const std::string& name : m_settings.providers) {
    auto entry = std::make_unique<provider>();
    entry->name = name;
    entry->index = m_providers.size();
    m_providers.push_back(std::move(entry));
  }
}

device_memory::~device_memory() = default;

void device_memory::open(provider& entry) {
  if (entry.open.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(m_opening);
  // Drivers do not become available later, but a program may register its allocator after the first allocation.
  const bool is_final = entry.was_tried && (entry.name == "umf" || entry.name == "direct");
  if (is_final || entry.open) return;
  entry.was_tried = true;
  entry.source = m_open(entry.name, entry.reason);
  if (!entry.source) return;
  open_pool(entry);
  entry.open.store(true, std::memory_order_release);
}

void device_memory::open_pool(provider& entry) {
  if (!m_settings.pool) {
    entry.pool_reason = "memory.pool is false";
    return;
  }
  const auto& keep_bytes = m_settings.pool_keep_bytes;
  entry.pool = memory_pool::create(*entry.source, m_settings.pool_max_block_bytes,
                                   keep_bytes ? *keep_bytes : default_keep_bytes(m_device), entry.pool_reason);
  // The pool is on by default and explain() reports the reason, so a machine without UMF needs no warning.
  if (!entry.pool)
    log(log_level::info, "memory: {} has no pool, every block is allocated by the driver: {}",
        format_device(m_device), entry.pool_reason);
}

void* device_memory::allocate_from(provider& entry, std::uint64_t bytes, bool bypass_pool, bool& is_pooled) {
  is_pooled = !bypass_pool && entry.pool && bytes <= entry.pool->max_bytes();
  if (!is_pooled && !entry.pool) return entry.source->allocate(bytes);
  try {
    return is_pooled ? entry.pool->allocate(bytes) : entry.source->allocate(bytes);
  } catch (const error& failure) {
    if (failure.info().status != ISTHMUS_ERROR_OUT_OF_MEMORY) throw;
  }
  // Unused pool memory may suffice, and a separate block needs less memory than a slab of the pool.
  trim();
  is_pooled = false;
  return entry.source->allocate(bytes);
}

// Allocates a mapped block, or resizes `old`.
void* device_memory::allocate_mapped_from(provider& entry, const memory_block* old_block, std::uint64_t bytes) {
  const auto try_allocate = [&] {
    return old_block == nullptr ? entry.source->allocate_mapped(bytes)
                                : entry.source->resize_mapped(reinterpret_cast<void*>(old_block->begin),
                                                              old_block->bytes, bytes);
  };
  try {
    return try_allocate();
  } catch (const error& failure) {
    if (failure.info().status != ISTHMUS_ERROR_OUT_OF_MEMORY) throw;
  }
  trim();
  return try_allocate();
}

// allocate_block(entry, block) allocates the memory and sets the flags of `block`.
template <typename Allocate>
void* device_memory::allocate_with(Allocate&& allocate_block, std::uint64_t bytes, bool reports_fallback) {
  if (bytes == 0) return nullptr;
  provider_failures failures;
  for (const auto& entry : m_providers) {
    open(*entry);
    if (!entry->open.load(std::memory_order_acquire)) {
      const std::lock_guard lock(m_opening);
      failures.add(entry->name, entry->reason);
      continue;
    }
    try {
      memory_block block{0, bytes, this, entry->index, false};
      void* pointer = allocate_block(*entry, block);
      block.begin = reinterpret_cast<std::uintptr_t>(pointer);
      block_table::instance().insert(block);
      if (reports_fallback) log_fallback(*entry, failures);
      return pointer;
    } catch (const error& failure) {
      failures.add(entry->name, failure.what());
      failures.is_out_of_memory |= failure.info().status == ISTHMUS_ERROR_OUT_OF_MEMORY;
      if (!failures.first) failures.first = failure;
    }
  }
  isthmus_status status = failures.first ? failures.first->info().status : ISTHMUS_ERROR_UNSUPPORTED;
  if (failures.is_out_of_memory) status = ISTHMUS_ERROR_OUT_OF_MEMORY;
  throw make_error(status, ISTHMUS_HERE,
                   fmt::format("memory_allocate_device: bytes = {} could not be allocated on {}; tried {}",
                               bytes, format_device(m_device), failures.text.empty() ? "none" : failures.text),
                   fmt::format("check the memory.provider setting of {}", m_settings.providers_source),
                   failures.first ? failures.first->info().native_code : 0);
}

void* device_memory::allocate(std::uint64_t bytes, bool bypass_pool) {
  return allocate_with(
      [&](provider& entry, memory_block& block) {
        return allocate_from(entry, bytes, bypass_pool, block.is_pooled);
      },
      bytes, true);
}

void* device_memory::allocate_growable(std::uint64_t bytes) {
  return allocate_with(
      [&](provider& entry, memory_block& block) {
        block.is_growable = true;
        return allocate_mapped_from(entry, nullptr, bytes);
      },
      bytes, false);  // only some providers support such blocks, so this is not a fallback
}

void device_memory::log_fallback(const provider& selected_provider, const provider_failures& failures) {
  if (failures.text.empty()) return;
  const std::uint64_t bit = std::uint64_t{1} << selected_provider.index;
  if ((m_logged_fallbacks.fetch_or(bit) & bit) != 0) return;
  // The built-in order lists all providers that a machine may have, so warn only if the order
  // was set explicitly.
  const bool is_configured = !m_settings.providers_source.starts_with("default");
  log(is_configured || failures.first ? log_level::warning : log_level::info,
      "memory: {} falls back to provider {}: {}", format_device(m_device), selected_provider.name,
      failures.text);
}

void device_memory::release(const memory_block& block) {
  provider& entry = *m_providers[block.provider];
  void* pointer = reinterpret_cast<void*>(block.begin);
  if (block.is_growable)
    entry.source->free_mapped(pointer, block.bytes);
  else if (block.is_pooled)
    entry.pool->free(pointer);
  else
    entry.source->free(pointer, block.bytes);
}

void device_memory::free(isthmus_device device, void* pointer) {
  if (pointer == nullptr) return;
  const memory_block block = block_table::instance().remove(device, pointer, "memory_free_device");
  block.owner->release(block);
}

void* device_memory::resize(isthmus_device device, void* pointer, std::uint64_t bytes) {
  if (pointer == nullptr) return allocate(bytes, false);
  const memory_block old_block = block_table::instance().lookup(device, pointer, "memory_resize_device");
  if (bytes == old_block.bytes) return pointer;
  if (old_block.is_growable && bytes > 0) return resize_growable(old_block, bytes);
  const std::string& name = provider_name(old_block);
  void* new_pointer = allocate(bytes, false);
  try {
    if (new_pointer != nullptr) copy(new_pointer, pointer, std::min(bytes, old_block.bytes), name);
  } catch (const error&) {
    free(new_pointer);
    throw;
  }
  free(pointer);
  return new_pointer;
}

// The block is removed from the table before the driver can reuse its old addresses.
void* device_memory::resize_growable(memory_block block, std::uint64_t bytes) {
  auto& table = block_table::instance();
  table.remove(m_device, reinterpret_cast<void*>(block.begin), "memory_resize_device");
  try {
    const void* new_address = allocate_mapped_from(*m_providers[block.provider], &block, bytes);
    block.begin = reinterpret_cast<std::uintptr_t>(new_address);
    block.bytes = bytes;
  } catch (const error&) {
    table.insert(block);
    throw;
  }
  table.insert(block);
  return reinterpret_cast<void*>(block.begin);
}

void device_memory::copy(void* destination, const void* source, std::uint64_t bytes,
                         const std::string& provider) {
  if (m_device.platform == ISTHMUS_PLATFORM_HOST) {
    std::memcpy(destination, source, bytes);
    return;
  }
  std::string reason = "its context belongs to the SYCL program";
  device_driver* driver = provider == "sycl" ? nullptr : device_driver::get(m_device.platform, reason);
  if (driver == nullptr)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("memory_resize_device: a block of provider {} on {} cannot be copied: {}",
                                 provider, format_device(m_device), reason),
                     "allocate a new block and copy with a queue of the program");
  const owned_stream stream(*driver, m_device.ordinal);
  const device_copy request{destination, source, bytes};
  driver->copy(m_device.ordinal, {&request, 1}, stream);
  driver->synchronize(m_device.ordinal, stream);
}

void device_memory::trim() {
  for (const auto& entry : m_providers) {
    if (entry->open.load(std::memory_order_acquire) && entry->pool) entry->pool->trim();
  }
}

const std::string& device_memory::provider_name(const memory_block& block) const {
  return m_providers[block.provider]->name;
}

nlohmann::json device_memory::explain() {
  nlohmann::json providers = nlohmann::json::array();
  for (const auto& entry : m_providers) {
    open(*entry);
    const auto live_blocks = block_table::instance().live_totals(this, entry->index);
    const std::lock_guard lock(m_opening);
    nlohmann::json entry_json = {{"name", entry->name},
                                 {"available", entry->open.load()},
                                 {"reason", entry->open ? "" : entry->reason},
                                 {"live_blocks", live_blocks.blocks},
                                 {"live_bytes", live_blocks.bytes}};
    if (entry->pool) {
      const auto pool_usage = entry->pool->current_usage();
      entry_json["pool"] = {{"reserved_bytes", pool_usage.reserved_bytes},
                            {"unused_bytes", pool_usage.unused_bytes},
                            {"max_bytes", m_settings.pool_max_block_bytes},
                            {"keep_bytes", entry->pool->keep_bytes()}};
    } else {
      entry_json["pool"] = entry->open ? entry->pool_reason : "";
    }
    providers.push_back(std::move(entry_json));
  }
  return {{"device", {{"platform", isthmus_platform_name(m_device.platform)}, {"ordinal", m_device.ordinal}}},
          {"order", m_settings.providers},
          {"order_source", m_settings.providers_source},
          {"providers", std::move(providers)}};
}

}  // namespace isthmus
