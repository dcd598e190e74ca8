// Level Zero driver: streams, events and work on streams.
//
// Commands of an immediate list may overlap. Each operation starts with a barrier, so that the list behaves
// like a stream. (In-order lists were added in Level Zero 1.7.)
#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "device/level_zero/level_zero_api.hpp"
#include "device/level_zero/level_zero_driver.hpp"

namespace isthmus {
namespace {

// A Level Zero event is signaled once and must then be reset, while a native_event can be recorded repeatedly.
// Each native_event therefore owns as many Level Zero events as there can be outstanding records.
constexpr std::uint32_t events_per_native_event = 64;

struct single_event {
  const level_zero_api& api;
  ze_event_pool_handle_t pool = nullptr;
  ze_event_handle_t event = nullptr;

  single_event(const level_zero_api& table, ze_context_handle_t context, ze_device_handle_t device)
      : api(table) {
    const ze_event_pool_desc_t pool_description{ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr,
                                                ZE_EVENT_POOL_FLAG_HOST_VISIBLE, 1};
    level_zero_api::check(api.event_pool_create(context, &pool_description, 1, &device, &pool), ISTHMUS_HERE,
                          "zeEventPoolCreate");
    const ze_event_desc_t description{ZE_STRUCTURE_TYPE_EVENT_DESC, nullptr, 0, ZE_EVENT_SCOPE_FLAG_HOST,
                                      ZE_EVENT_SCOPE_FLAG_HOST};
    const ze_result_t result = api.event_create(pool, &description, &event);
    if (result != ZE_RESULT_SUCCESS) api.event_pool_destroy(pool);
    level_zero_api::check(result, ISTHMUS_HERE, "zeEventCreate");
  }
  ~single_event() {
    api.event_destroy(event);
    api.event_pool_destroy(pool);
  }
  single_event(const single_event&) = delete;
  single_event& operator=(const single_event&) = delete;
};

}  // namespace

struct level_zero_driver::recorded_event {
  ze_event_pool_handle_t pool = nullptr;
  std::array<ze_event_handle_t, events_per_native_event> events{};
  std::uint64_t records = 0;  // the latest is events[(records - 1) % events_per_native_event]

  ze_event_handle_t latest() const {
    return records == 0 ? nullptr : events[(records - 1) % events_per_native_event];
  }
};

ze_command_list_handle_t level_zero_driver::command_list(native_stream stream) const {
  if (stream == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     "stream is NULL; Level Zero has no default stream", "pass a stream from create_stream");
  return static_cast<ze_command_list_handle_t>(stream);
}

native_stream level_zero_driver::create_stream(int device, stream_priority priority) {
  const device_state& own = state(device);
  ze_command_queue_desc_t description{};
  description.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  description.ordinal = own.copy_group;
  description.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  description.priority = priority == stream_priority::high ? ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH
                                                           : ZE_COMMAND_QUEUE_PRIORITY_NORMAL;
  ze_command_list_handle_t list = nullptr;
  level_zero_api::check(m_api->command_list_create_immediate(m_context, own.handle, &description, &list),
                        ISTHMUS_HERE, "zeCommandListCreateImmediate");
  return list;
}

void level_zero_driver::destroy_stream(int, native_stream stream) {
  level_zero_api::check(m_api->command_list_destroy(command_list(stream)), ISTHMUS_HERE,
                        "zeCommandListDestroy");
}

void level_zero_driver::synchronize(int device, native_stream stream) {
  const single_event completion(*m_api, m_context, state(device).handle);
  level_zero_api::check(m_api->command_list_append_barrier(command_list(stream), completion.event, 0, nullptr),
                        ISTHMUS_HERE, "zeCommandListAppendBarrier");
  level_zero_api::check(m_api->event_host_synchronize(completion.event, UINT64_MAX), ISTHMUS_HERE,
                        "zeEventHostSynchronize");
}

// Level Zero has no graphs.
bool level_zero_driver::is_capturing(int, native_stream) { return false; }

native_event level_zero_driver::create_event(int device) {
  static_cast<void>(state(device));  // checks the ordinal; events are valid for every device of the context
  const ze_event_pool_desc_t pool{ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr, ZE_EVENT_POOL_FLAG_HOST_VISIBLE,
                                  events_per_native_event};
  auto created = std::make_unique<recorded_event>();
  level_zero_api::check(m_api->event_pool_create(m_context, &pool, 0, nullptr, &created->pool), ISTHMUS_HERE,
                        "zeEventPoolCreate");
  for (std::uint32_t i = 0; i < events_per_native_event; ++i) {
    const ze_event_desc_t description{ZE_STRUCTURE_TYPE_EVENT_DESC, nullptr, i, ZE_EVENT_SCOPE_FLAG_DEVICE,
                                      ZE_EVENT_SCOPE_FLAG_DEVICE};
    const ze_result_t result = m_api->event_create(created->pool, &description, &created->events[i]);
    if (result != ZE_RESULT_SUCCESS) {
      destroy_event(created.release());
      level_zero_api::check(result, ISTHMUS_HERE, "zeEventCreate");
    }
  }
  return created.release();
}

void level_zero_driver::destroy_event(native_event event) {
  const std::unique_ptr<recorded_event> owned(static_cast<recorded_event*>(event));
  for (ze_event_handle_t item : owned->events) {
    if (item != nullptr) level_zero_api::check(m_api->event_destroy(item), ISTHMUS_HERE, "zeEventDestroy");
  }
  level_zero_api::check(m_api->event_pool_destroy(owned->pool), ISTHMUS_HERE, "zeEventPoolDestroy");
}

void level_zero_driver::record(int, native_event event, native_stream stream) {
  auto& own = *static_cast<recorded_event*>(event);
  ze_event_handle_t next = own.events[own.records % events_per_native_event];
  if (own.records >= events_per_native_event) {
    if (m_api->event_query_status(next) != ZE_RESULT_SUCCESS)
      throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                       fmt::format("an event was recorded {} times before the first record completed",
                                   events_per_native_event),
                       "wait for earlier work first, or use more events");
    level_zero_api::check(m_api->event_host_reset(next), ISTHMUS_HERE, "zeEventHostReset");
  }
  level_zero_api::check(m_api->command_list_append_barrier(command_list(stream), next, 0, nullptr),
                        ISTHMUS_HERE, "zeCommandListAppendBarrier");
  ++own.records;
}

void level_zero_driver::wait(int, native_stream stream, native_event event) {
  ze_event_handle_t latest = static_cast<recorded_event*>(event)->latest();
  if (latest == nullptr) return;  // never recorded
  level_zero_api::check(m_api->command_list_append_barrier(command_list(stream), nullptr, 1, &latest),
                        ISTHMUS_HERE, "zeCommandListAppendBarrier");
}

bool level_zero_driver::is_done(native_event event) {
  ze_event_handle_t latest = static_cast<recorded_event*>(event)->latest();
  if (latest == nullptr) return true;
  const ze_result_t result = m_api->event_query_status(latest);
  if (result == ZE_RESULT_NOT_READY) return false;
  level_zero_api::check(result, ISTHMUS_HERE, "zeEventQueryStatus");
  return true;
}

void level_zero_driver::copy(int device, std::span<const device_copy> copies, native_stream stream) {
  const auto is_empty = [](const device_copy& item) { return item.bytes == 0; };
  if (std::all_of(copies.begin(), copies.end(), is_empty)) return;
  ze_command_list_handle_t list = command_list(stream);
  level_zero_api::check(m_api->command_list_append_barrier(list, nullptr, 0, nullptr), ISTHMUS_HERE,
                        "zeCommandListAppendBarrier");
  for (const device_copy& item : copies) {
    if (is_empty(item)) continue;
    level_zero_api::check(
        m_api->command_list_append_memory_copy(list, item.destination, item.source, item.bytes, nullptr, 0,
                                               nullptr),
        ISTHMUS_HERE,
        fmt::format("zeCommandListAppendMemoryCopy of {} bytes on level_zero:{}", item.bytes, device));
  }
}

void level_zero_driver::fill_pattern(int device, void* pointer, const void* pattern, std::size_t pattern_bytes,
                                     std::uint64_t bytes, native_stream stream, const char* function) {
  if (state(device).max_fill_pattern_bytes < pattern_bytes)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format(
            "{}: the copy engine of level_zero:{} supports fill patterns of at most {} bytes; {} are needed",
            function, device, state(device).max_fill_pattern_bytes, pattern_bytes));
  ze_command_list_handle_t list = command_list(stream);
  level_zero_api::check(m_api->command_list_append_barrier(list, nullptr, 0, nullptr), ISTHMUS_HERE,
                        "zeCommandListAppendBarrier");
  level_zero_api::check(
      m_api->command_list_append_memory_fill(list, pointer, pattern, pattern_bytes, bytes, nullptr, 0, nullptr),
      ISTHMUS_HERE, fmt::format("zeCommandListAppendMemoryFill of {} bytes on level_zero:{}", bytes, device));
}

void level_zero_driver::fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes,
                             native_stream stream) {
  if (bytes > 0) fill_pattern(device, pointer, &value, sizeof value, bytes, stream, "fill");
}

void level_zero_driver::write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) {
  fill_pattern(device, word, &value, sizeof value, sizeof value, stream, "write_word");
}

void level_zero_driver::wait_word(int, const std::uint32_t*, std::uint32_t, native_stream) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   "wait_word: a Level Zero stream cannot wait for a word of memory",
                   "order the streams with events");
}

}  // namespace isthmus
