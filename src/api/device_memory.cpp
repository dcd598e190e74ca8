// C entry points of memory.h for plain memory of a device.
#include "memory/pool/device_memory.hpp"

#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "base/error.hpp"
#include "base/text.hpp"
#include "memory/heap/symmetric_heap.hpp"
#include "memory/pool/block_table.hpp"
#include "selection/selection.hpp"

namespace isthmus {
namespace {

void check_memory_device(const char* function, isthmus_device device) {
  check_device(ISTHMUS_HERE, function, device);
  if (device.platform == ISTHMUS_PLATFORM_HOST && device.ordinal != 0)
    throw invalid_argument(
        ISTHMUS_HERE,
        fmt::format("{}: device.ordinal = {} must be 0 on platform host", function, device.ordinal),
        "pass ordinal 0: the host is one device");
}

// Returns the allocator of a device. Allocators are never destroyed, because blocks may be freed after static
// destructors have run.
device_memory& find_or_create_device_memory(const char* function, isthmus_device device,
                                            void* native_context = nullptr) {
  check_memory_device(function, device);
  if (native_context != nullptr && device.platform != ISTHMUS_PLATFORM_LEVEL_ZERO)
    throw invalid_argument(
        ISTHMUS_HERE,
        fmt::format("{}: options->native_context must be NULL for {}", function, format_device(device)),
        "set it only for level_zero: the other platforms have one context per device");
  static std::mutex& mutex = *new std::mutex;
  static auto& instances = *new std::map<std::tuple<isthmus_platform, int, void*>, device_memory>;
  const std::lock_guard lock(mutex);
  const std::tuple key{device.platform, device.ordinal, native_context};
  if (const auto entry = instances.find(key); entry != instances.end()) return entry->second;
  // If the configuration is invalid, every call reads it again and reports the error.
  static const selection::memory_settings& settings =
      *new selection::memory_settings(selection::load_configuration(nullptr).memory);
  return instances.try_emplace(key, device, settings, make_source_opener(device, native_context)).first->second;
}

isthmus_memory_options read_options(const char* function, const isthmus_memory_options* options) {
  if (options == nullptr) return {};
  if (options->struct_bytes < sizeof *options)
    throw invalid_argument(ISTHMUS_HERE,
                           fmt::format("{}: options->struct_bytes = {} must be at least {}", function,
                                       options->struct_bytes, sizeof *options),
                           "zero-initialize the options and set struct_bytes = sizeof(isthmus_memory_options)");
  return *options;
}

}  // namespace
}  // namespace isthmus

isthmus_status isthmus_memory_allocate_device(isthmus_device device, uint64_t bytes,
                                              const isthmus_memory_options* options, void** pointer) {
  constexpr const char* function = "memory_allocate_device";
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, function, "pointer", pointer);
    *pointer = nullptr;
    const isthmus_memory_options checked_options = isthmus::read_options(function, options);
    isthmus::device_memory& memory =
        isthmus::find_or_create_device_memory(function, device, checked_options.native_context);
    *pointer = checked_options.growable != 0 ? memory.allocate_growable(bytes)
                                             : memory.allocate(bytes, checked_options.unpooled != 0);
  });
}

isthmus_status isthmus_memory_resize_device(isthmus_device device, void** pointer, uint64_t bytes) {
  constexpr const char* function = "memory_resize_device";
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, function, "pointer", pointer);
    isthmus::device_memory& new_memory = isthmus::find_or_create_device_memory(function, device);
    const auto block = isthmus::block_table::instance().find(*pointer);
    *pointer = (block ? *block->owner : new_memory).resize(device, *pointer, bytes);
  });
}

isthmus_status isthmus_memory_free_device(isthmus_device device, void* pointer) {
  return isthmus::guard([&] {
    isthmus::check_memory_device("memory_free_device", device);
    isthmus::device_memory::free(device, pointer);
  });
}

isthmus_status isthmus_memory_trim(isthmus_device device) {
  return isthmus::guard([&] { isthmus::find_or_create_device_memory("memory_trim", device).trim(); });
}

isthmus_status isthmus_memory_query(const void* pointer, isthmus_memory_info* info) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "memory_query", "info", info);
    const auto block = isthmus::block_table::instance().find(pointer);
    if (!block)
      throw isthmus::invalid_argument(
          ISTHMUS_HERE, fmt::format("memory_query: pointer = {} must lie in a live plain block", pointer),
          "pass a pointer of isthmus_memory_allocate_device, not of a symmetric heap or another allocator");
    *info = {};
    info->device = block->owner->device();
    info->begin = reinterpret_cast<void*>(block->begin);
    info->bytes = block->bytes;
    isthmus::copy_text(info->provider, sizeof info->provider, block->owner->provider_name(*block));
    info->pooled = block->is_pooled ? 1 : 0;
  });
}

isthmus_status isthmus_memory_explain(isthmus_device device, char* json, size_t capacity,
                                      size_t* required_bytes) {
  constexpr const char* function = "memory_explain";
  return isthmus::guard([&] {
    const std::string text = isthmus::find_or_create_device_memory(function, device)
                                 .explain()
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    isthmus::write_json(ISTHMUS_HERE, function, text, json, capacity, required_bytes);
  });
}

uint64_t isthmus_memory_live_blocks(void) {
  return isthmus::block_table::instance().live_totals().blocks + isthmus::symmetric_heap::live_blocks();
}

isthmus_status isthmus_memory_register(isthmus_device device, const isthmus_memory_provider* provider) {
  constexpr const char* function = "memory_register";
  return isthmus::guard([&] {
    isthmus::check_memory_device(function, device);
    isthmus::require_not_null(ISTHMUS_HERE, function, "provider", provider);
    if (provider->struct_bytes < sizeof *provider)
      throw isthmus::invalid_argument(ISTHMUS_HERE,
                                      fmt::format("{}: provider->struct_bytes = {} must be at least {}",
                                                  function, provider->struct_bytes, sizeof *provider),
                                      "set struct_bytes = sizeof(isthmus_memory_provider)");
    isthmus::require_not_null(ISTHMUS_HERE, function, "provider->name", provider->name);
    isthmus::require_not_null(ISTHMUS_HERE, function, "provider->allocate", provider->allocate);
    isthmus::require_not_null(ISTHMUS_HERE, function, "provider->free", provider->free);
    if (std::string(provider->name) != "sycl")
      throw isthmus::invalid_argument(
          ISTHMUS_HERE, fmt::format("{}: provider->name = \"{}\" must be \"sycl\"", function, provider->name),
          "register the provider as \"sycl\"; the configuration supports no other name");
    isthmus::register_source(device, *provider);
  });
}
