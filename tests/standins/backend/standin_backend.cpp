#include "standins/backend/standin_backend.hpp"

#include <algorithm>
#include <atomic>
#include <isthmus/plugin.hpp>
#include <memory>
#include <mutex>
#include <utility>

namespace standin {
namespace {

struct state {
  const isthmus_backend_context* context;
  int rank;
};

std::mutex mutex;
script current;
std::vector<record> log;
std::vector<state*> all_states;
std::atomic<int> supports_count{0};

void note(event kind, int rank, void* child_state = nullptr, isthmus_heap_block block = {}) {
  const std::lock_guard lock(mutex);
  block.peers = nullptr;
  log.push_back({kind, rank, {}, {}, {}, std::this_thread::get_id(), child_state, block});
}

state& state_of(void* pointer) { return *static_cast<state*>(pointer); }

isthmus_status report(const state& rank, isthmus_status status) {
  if (status == ISTHMUS_SUCCESS || current.failure.empty()) return status;
  return rank.context->fail(rank.context->runtime, status, current.native_code, "standin:1", "scripted hint",
                            "%s", current.failure.c_str());
}

isthmus_status exchange(const isthmus_backend_context& context, script::exchange kind) {
  switch (kind) {
    case script::exchange::none: break;
    case script::exchange::rank: {
      std::vector<int> all(static_cast<std::size_t>(context.size));
      return context.allgather(context.runtime, &context.rank, all.data(), sizeof context.rank);
    }
    case script::exchange::vote: {
      isthmus::votes<int> all;
      return isthmus::agree(context, "standin:2", isthmus::vote<int>{}, all);
    }
    case script::exchange::heap_block: {
      isthmus_heap_block block;
      return context.heap_allocate(context.runtime, 64, &block);
    }
  }
  return ISTHMUS_SUCCESS;
}

isthmus_status create(const isthmus_backend_context* context, void** result) {
  note(event::create, context->rank, context->split_state);
  *result = nullptr;
  auto new_state = std::make_unique<state>(state{context, context->rank});
  if (current.in_create) current.in_create(*context);
  const isthmus_status status = current.create ? current.create(context->rank) : ISTHMUS_SUCCESS;
  if (status != ISTHMUS_SUCCESS) return report(*new_state, status);
  if (const isthmus_status exchange_status = exchange(*context, current.exchange_in_create);
      exchange_status != ISTHMUS_SUCCESS)
    return exchange_status;
  const std::lock_guard lock(mutex);
  all_states.push_back(new_state.get());
  *result = new_state.release();
  return ISTHMUS_SUCCESS;
}

void destroy(void* pointer) {
  note(event::destroy, state_of(pointer).rank);
  const std::lock_guard lock(mutex);
  std::erase(all_states, &state_of(pointer));
  delete &state_of(pointer);
}

const char* supports(void*, const isthmus_operation* operation, int algorithm) {
  supports_count.fetch_add(1);
  return current.supports ? current.supports(*operation, algorithm) : nullptr;
}

std::vector<std::uint64_t> copy(const std::uint64_t* array, int size) {
  return array == nullptr ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>(array, array + size);
}

// In other cases the pointers may be invalid.
bool reads_send_arrays(const isthmus_operation& operation, int rank) {
  return operation.collective == ISTHMUS_ALLTOALLV || operation.collective == ISTHMUS_REDUCE_SCATTERV ||
         (operation.collective == ISTHMUS_SCATTERV && operation.root == rank);
}
bool reads_recv_arrays(const isthmus_operation& operation, int rank) {
  return operation.collective == ISTHMUS_ALLTOALLV || operation.collective == ISTHMUS_ALLGATHERV ||
         (operation.collective == ISTHMUS_GATHERV && operation.root == rank);
}

constexpr const char* algorithms[] = {"fast", "slow", "slow_bf16", nullptr};

std::string algorithm_name(int index) {
  if (index == ISTHMUS_ANY_ALGORITHM) return "";
  return index == 0 || index == 1 ? algorithms[index] : "?";
}

isthmus_status enqueue(void* pointer, const isthmus_operation* operations, const int* indices, size_t n) {
  const state& rank = state_of(pointer);
  record entry{
      event::enqueue, rank.rank, {operations, operations + n}, {}, {}, std::this_thread::get_id(), {}, {}};
  for (size_t i = 0; i < n; ++i) {
    entry.algorithms.push_back(algorithm_name(indices[i]));
    const isthmus_operation& each = operations[i];
    const bool sends = reads_send_arrays(each, rank.rank), receives = reads_recv_arrays(each, rank.rank);
    for (const std::uint64_t* array :
         {sends ? each.send_counts : nullptr, sends ? each.send_displs : nullptr,
          receives ? each.recv_counts : nullptr, receives ? each.recv_displs : nullptr})
      entry.arrays.push_back(copy(array, rank.context->size));
  }
  {
    const std::lock_guard lock(mutex);
    log.push_back(std::move(entry));
  }
  return report(rank, current.enqueue ? current.enqueue(rank.rank, operations[0]) : ISTHMUS_SUCCESS);
}

isthmus_status group_start() {
  note(event::group_start, -1);
  return current.group_start ? current.group_start() : ISTHMUS_SUCCESS;
}

isthmus_status group_end() {
  note(event::group_end, -1);
  return current.group_end ? current.group_end() : ISTHMUS_SUCCESS;
}

isthmus_status poll(void* pointer) {
  return report(state_of(pointer), current.poll ? current.poll(state_of(pointer).rank) : ISTHMUS_SUCCESS);
}

void abort(void* pointer) {
  note(event::abort, state_of(pointer).rank);
  if (current.abort) current.abort(state_of(pointer).rank);
}

isthmus_status synchronize(void* pointer) {
  note(event::synchronize, state_of(pointer).rank);
  return report(state_of(pointer),
                current.synchronize ? current.synchronize(state_of(pointer).rank) : ISTHMUS_SUCCESS);
}

const char* version(void*) { return "standin 1.0"; }

void* split(void* pointer, int color, int key) {
  const int rank = state_of(pointer).rank;
  void* const child_state = current.split ? current.split(rank, color, key) : nullptr;
  note(event::split, rank, child_state);
  return child_state;
}

void discard_split_state(void* child_state) { note(event::discard_split_state, -1, child_state); }

void register_block(void* pointer, const isthmus_heap_block* block) {
  note(event::register_block, state_of(pointer).rank, nullptr, *block);
}

void unregister_block(void* pointer, const isthmus_heap_block* block) {
  note(event::unregister_block, state_of(pointer).rank, nullptr, *block);
}

isthmus_backend functions = {.struct_bytes = sizeof(isthmus_backend),
                             .magic = ISTHMUS_BACKEND_MAGIC,
                             .abi_version = ISTHMUS_BACKEND_ABI,
                             .name = "standin",
                             .description = "records calls and fails on request",
                             .capabilities = 0,
                             .platforms = (1u << ISTHMUS_PLATFORM_COUNT) - 1,
                             .create = create,
                             .destroy = destroy,
                             .supports = supports,
                             .algorithms = algorithms,
                             .enqueue = enqueue,
                             .group_start = group_start,
                             .group_end = group_end,
                             .poll = poll,
                             .abort = abort,
                             .synchronize = synchronize,
                             .version = version,
                             .split = split,
                             .discard_split_state = discard_split_state,
                             .register_block = register_block,
                             .unregister_block = unregister_block,
                             .plan = nullptr};

}  // namespace

void reset(script next) {
  const std::lock_guard lock(mutex);
  functions.capabilities = next.capabilities;
  functions.platforms = next.platforms;
  current = std::move(next);
  log.clear();
  supports_count.store(0);
}

std::vector<record> records() {
  const std::lock_guard lock(mutex);
  return log;
}

std::vector<record> records(event kind) {
  auto all = records();
  std::erase_if(all, [kind](const record& entry) { return entry.what != kind; });
  return all;
}

int live_states() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(all_states.size());
}

int supports_calls() { return supports_count.load(); }

const isthmus_backend_context* context_of(int rank) {
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(all_states.begin(), all_states.end(),
                                  [rank](const state* each) { return each->rank == rank; });
  return found == all_states.end() ? nullptr : (*found)->context;
}

std::string path() { return STANDIN_PLUGIN_PATH; }

std::string configuration() { return "[plugins]\nstandin = \"" + path() + "\"\n[[rule]]\nuse = \"standin\"\n"; }

}  // namespace standin

__attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return &standin::functions;
}
