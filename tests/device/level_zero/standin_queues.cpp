// The stand-in's immediate command lists and events.
#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <cstring>

#include "newer.hpp"
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
                       [](const std::shared_ptr<bool>& event) { return *event; });
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
  if (running.signals != nullptr) *running.signals = true;
  return true;
}

// A list runs until it has to wait. Which list goes first changes, so that no command can rely on the order.
void standin_state::progress() {
  if (hold) return;
  std::shuffle(lists.begin(), lists.end(), random);
  while (std::any_of(lists.begin(), lists.end(), [&](ze_command_list_handle_t list) { return advance(list); }))
    continue;
}

ze_result_t standin_state::append(ze_command_list_handle_t list, bool barrier, std::function<void()> run,
                                  ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events) {
  if (std::find(lists.begin(), lists.end(), list) == lists.end()) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  command item{barrier || list->is_in_order, std::move(run), nullptr, {}};
  for (std::uint32_t i = 0; i < waits; ++i) item.waits.push_back(events[i]->is_signaled);
  if (signals != nullptr && signals->is_counter_based) signals->is_signaled = std::make_shared<bool>(false);
  if (signals != nullptr) item.signals = signals->is_signaled;
  list->pending.push_back(std::move(item));
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeCommandListCreateImmediate(ze_context_handle_t, ze_device_handle_t device,
                                                               const ze_command_queue_desc_t* description,
                                                               ze_command_list_handle_t* list) {
  const counted_call call(__func__);
  if (device->type != ZE_DEVICE_TYPE_GPU || description->ordinal > 1) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  call.state.count(description->ordinal == 1 ? "copy engine" : "compute engine");
  if (description->priority == ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH) call.state.count("high priority");
  *list = new _ze_command_list_handle_t{description->ordinal, (description->flags & in_order_flag) != 0, {}};
  call.state.lists.push_back(*list);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeCommandListDestroy(ze_command_list_handle_t list) {
  const counted_call call(__func__);
  call.state.progress();
  const auto entry = std::find(call.state.lists.begin(), call.state.lists.end(), list);
  if (entry == call.state.lists.end()) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  if (!list->pending.empty()) return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
  call.state.lists.erase(entry);
  delete list;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendBarrier(ze_command_list_handle_t list,
                                                             ze_event_handle_t signals, std::uint32_t waits,
                                                             ze_event_handle_t* events) {
  const counted_call call(__func__);
  return call.state.append(list, true, {}, signals, waits, events);
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendMemoryCopy(ze_command_list_handle_t list, void* to,
                                                                const void* from, std::size_t bytes,
                                                                ze_event_handle_t signals, std::uint32_t waits,
                                                                ze_event_handle_t* events) {
  const counted_call call(__func__);
  return call.state.append(list, false, [=] { std::memcpy(to, from, bytes); }, signals, waits, events);
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendMemoryFill(ze_command_list_handle_t list, void* to,
                                                                const void* pattern, std::size_t pattern_bytes,
                                                                std::size_t bytes, ze_event_handle_t signals,
                                                                std::uint32_t waits,
                                                                ze_event_handle_t* events) {
  const counted_call call(__func__);
  if (list->group == 1 && pattern_bytes > 16) return ZE_RESULT_ERROR_INVALID_SIZE;
  const std::string value(static_cast<const char*>(pattern), pattern_bytes);
  const auto run = [=] {
    for (std::size_t offset = 0; offset < bytes; offset += value.size())
      std::memcpy(static_cast<char*>(to) + offset, value.data(), value.size());
  };
  return call.state.append(list, false, run, signals, waits, events);
}

extern "C" ze_result_t ZE_APICALL zeEventPoolCreate(ze_context_handle_t,
                                                    const ze_event_pool_desc_t* description, std::uint32_t,
                                                    ze_device_handle_t*, ze_event_pool_handle_t* pool) {
  const counted_call call(__func__);
  ++call.state.event_pools;
  *pool = new _ze_event_pool_handle_t{description->count, 0};
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeEventPoolDestroy(ze_event_pool_handle_t pool) {
  const counted_call call(__func__);
  --call.state.event_pools;
  delete pool;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeEventCreate(ze_event_pool_handle_t pool, const ze_event_desc_t* description,
                                                ze_event_handle_t* event) {
  const counted_call call(__func__);
  if (description->index >= pool->count) return ZE_RESULT_ERROR_INVALID_SIZE;
  *event = new _ze_event_handle_t;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeEventDestroy(ze_event_handle_t event) {
  const counted_call call(__func__);
  delete event;
  return ZE_RESULT_SUCCESS;
}

// Nothing runs in the background, so an event that is not signaled after progress() will never be signaled.
extern "C" ze_result_t ZE_APICALL zeEventHostSynchronize(ze_event_handle_t event, std::uint64_t) {
  const counted_call call(__func__);
  call.state.progress();
  return *event->is_signaled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

extern "C" ze_result_t ZE_APICALL zeEventQueryStatus(ze_event_handle_t event) {
  const counted_call call(__func__);
  call.state.progress();
  return *event->is_signaled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

extern "C" ze_result_t ZE_APICALL zeEventHostReset(ze_event_handle_t event) {
  const counted_call call(__func__);
  *event->is_signaled = false;
  return ZE_RESULT_SUCCESS;
}

void add_lists(ze_command_list_dditable_t& table) {
  table.pfnCreateImmediate = &zeCommandListCreateImmediate;
  table.pfnDestroy = &zeCommandListDestroy;
  table.pfnAppendBarrier = &zeCommandListAppendBarrier;
  table.pfnAppendMemoryCopy = &zeCommandListAppendMemoryCopy;
  table.pfnAppendMemoryFill = &zeCommandListAppendMemoryFill;
}

void add_events(ze_event_pool_dditable_t& table) {
  table.pfnCreate = &zeEventPoolCreate;
  table.pfnDestroy = &zeEventPoolDestroy;
}

void add_events(ze_event_dditable_t& table) {
  table.pfnCreate = &zeEventCreate;
  table.pfnDestroy = &zeEventDestroy;
  table.pfnHostSynchronize = &zeEventHostSynchronize;
  table.pfnQueryStatus = &zeEventQueryStatus;
  table.pfnHostReset = &zeEventHostReset;
}

}  // namespace standin
