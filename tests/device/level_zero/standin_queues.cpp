// The stand-in's immediate command lists and events.
#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <cstring>

#include "standin.hpp"

namespace standin {

// Executes one command that can run: the last one before the next barrier whose events are signaled, or the
// barrier itself if it is first.
bool standin_state::advance(ze_command_list_handle_t list) {
  auto& pending = list->pending;
  const auto barrier =
      std::find_if(pending.begin(), pending.end(), [](const command& item) { return item.is_barrier; });
  const auto ready = [](const command& item) {
    return std::all_of(item.waits.begin(), item.waits.end(),
                       [](ze_event_handle_t event) { return event->is_signaled; });
  };
  auto next = pending.end();
  if (barrier == pending.begin() && barrier != pending.end()) {
    if (ready(*barrier)) next = barrier;
  } else {
    for (auto it = barrier; it != pending.begin();) {
      --it;
      if (ready(*it)) {
        next = it;
        break;
      }
    }
  }
  if (next == pending.end()) return false;
  const command running = std::move(*next);
  pending.erase(next);
  if (running.run) running.run();
  if (running.signals != nullptr) running.signals->is_signaled = true;
  return true;
}

void standin_state::progress() {
  if (hold) return;
  for (bool has_advanced = true; has_advanced;) {
    has_advanced = false;
    for (ze_command_list_handle_t list : lists) has_advanced = advance(list) || has_advanced;
  }
}

namespace {

ze_result_t append(standin_state& state, ze_command_list_handle_t list, bool barrier, std::function<void()> run,
                   ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events) {
  if (std::find(state.lists.begin(), state.lists.end(), list) == state.lists.end())
    return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  list->pending.push_back({barrier, std::move(run), signals, {events, events + waits}});
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL create_immediate(ze_context_handle_t, ze_device_handle_t device,
                                        const ze_command_queue_desc_t* description,
                                        ze_command_list_handle_t* list) {
  const counted_call call("zeCommandListCreateImmediate");
  if (device->type != ZE_DEVICE_TYPE_GPU || description->ordinal > 1) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  call.state.count(description->ordinal == 1 ? "copy engine" : "compute engine");
  if (description->priority == ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH) call.state.count("high priority");
  *list = new _ze_command_list_handle_t{description->ordinal, {}};
  call.state.lists.push_back(*list);
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL destroy_list(ze_command_list_handle_t list) {
  const counted_call call("zeCommandListDestroy");
  const auto entry = std::find(call.state.lists.begin(), call.state.lists.end(), list);
  if (entry == call.state.lists.end()) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  call.state.progress();
  if (!list->pending.empty()) return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
  call.state.lists.erase(entry);
  delete list;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL append_barrier(ze_command_list_handle_t list, ze_event_handle_t signals,
                                      std::uint32_t waits, ze_event_handle_t* events) {
  const counted_call call("zeCommandListAppendBarrier");
  return append(call.state, list, true, {}, signals, waits, events);
}

ze_result_t ZE_APICALL append_copy(ze_command_list_handle_t list, void* to, const void* from, std::size_t bytes,
                                   ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events) {
  const counted_call call("zeCommandListAppendMemoryCopy");
  return append(call.state, list, false, [=] { std::memcpy(to, from, bytes); }, signals, waits, events);
}

ze_result_t ZE_APICALL append_fill(ze_command_list_handle_t list, void* to, const void* pattern,
                                   std::size_t pattern_bytes, std::size_t bytes, ze_event_handle_t signals,
                                   std::uint32_t waits, ze_event_handle_t* events) {
  const counted_call call("zeCommandListAppendMemoryFill");
  if (list->group == 1 && pattern_bytes > 16) return ZE_RESULT_ERROR_INVALID_SIZE;
  const std::string value(static_cast<const char*>(pattern), pattern_bytes);
  const auto run = [=] {
    for (std::size_t offset = 0; offset < bytes; offset += value.size())
      std::memcpy(static_cast<char*>(to) + offset, value.data(), value.size());
  };
  return append(call.state, list, false, run, signals, waits, events);
}

ze_result_t ZE_APICALL create_pool(ze_context_handle_t, const ze_event_pool_desc_t* description, std::uint32_t,
                                   ze_device_handle_t*, ze_event_pool_handle_t* pool) {
  const counted_call call("zeEventPoolCreate");
  ++call.state.event_pools;
  *pool = new _ze_event_pool_handle_t{description->count, 0};
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL destroy_pool(ze_event_pool_handle_t pool) {
  const counted_call call("zeEventPoolDestroy");
  --call.state.event_pools;
  delete pool;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL create_event(ze_event_pool_handle_t pool, const ze_event_desc_t* description,
                                    ze_event_handle_t* event) {
  const counted_call call("zeEventCreate");
  if (description->index >= pool->count) return ZE_RESULT_ERROR_INVALID_SIZE;
  *event = new _ze_event_handle_t;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL destroy_event(ze_event_handle_t event) {
  const counted_call call("zeEventDestroy");
  delete event;
  return ZE_RESULT_SUCCESS;
}

// Nothing runs in the background, so an event that is not signaled after progress() will never be signaled.
ze_result_t ZE_APICALL synchronize(ze_event_handle_t event, std::uint64_t) {
  const counted_call call("zeEventHostSynchronize");
  call.state.progress();
  return event->is_signaled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

ze_result_t ZE_APICALL query(ze_event_handle_t event) {
  const counted_call call("zeEventQueryStatus");
  call.state.progress();
  return event->is_signaled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

ze_result_t ZE_APICALL reset(ze_event_handle_t event) {
  const counted_call call("zeEventHostReset");
  event->is_signaled = false;
  return ZE_RESULT_SUCCESS;
}

}  // namespace

void add_lists(ze_command_list_dditable_t& table) {
  table.pfnCreateImmediate = &create_immediate;
  table.pfnDestroy = &destroy_list;
  table.pfnAppendBarrier = &append_barrier;
  table.pfnAppendMemoryCopy = &append_copy;
  table.pfnAppendMemoryFill = &append_fill;
}

void add_events(ze_event_pool_dditable_t& table) {
  table.pfnCreate = &create_pool;
  table.pfnDestroy = &destroy_pool;
}

void add_events(ze_event_dditable_t& table) {
  table.pfnCreate = &create_event;
  table.pfnDestroy = &destroy_event;
  table.pfnHostSynchronize = &synchronize;
  table.pfnQueryStatus = &query;
  table.pfnHostReset = &reset;
}

}  // namespace standin
