#include "frontends/nccl/groups.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "frontends/nccl/nccl_call_scope.hpp"

namespace isthmus::nccl_shim {
namespace {

struct deferred_call {
  attached_communicator* communicator;
  isthmus_operation operation;
  preload::call_counter* counter;
};

struct nccl_call {
  attached_communicator* communicator;
  nccl_stream stream;
  std::size_t deferred_before;  // how many calls that Isthmus takes the group had by then
  bool operator==(const nccl_call&) const = default;
};

using deferred_calls = std::vector<deferred_call>;

struct group_state {
  int depth = 0;
  deferred_calls deferred;
  std::vector<nccl_call> nccl_calls;
  std::vector<pending_communicator> creations;
};

group_state& thread_group() {
  thread_local group_state instance;
  return instance;
}

// One group of Isthmus: no communicator has calls on two streams in it.
int run_as_group(const deferred_calls& calls) {
  const preload::stopwatch time(statistics());
  for (const deferred_call& each : calls)
    if (const int code = each.communicator->order().begin_call(each.operation.stream, call_owner::isthmus); code != nccl_success)
      return code;
  isthmus_status status = isthmus_group_start();
  for (const deferred_call& each : calls)
    if (status == ISTHMUS_SUCCESS) status = isthmus_enqueue(each.communicator->handle(), &each.operation);
  const isthmus_status end_status = isthmus_group_end();
  if (status == ISTHMUS_SUCCESS) status = end_status;
  if (status != ISTHMUS_SUCCESS) {
    const int code = calls.front().communicator->handle_failure(status);
    return code == attached_communicator::pass_to_nccl ? static_cast<int>(nccl_remote_error) : code;
  }
  for (const deferred_call& each : calls) {
    each.communicator->order().end_call(each.operation.stream, call_owner::isthmus);
    if (each.counter != nullptr)
      each.counter->add(bytes_of(each.operation), time.nanoseconds() / static_cast<std::int64_t>(calls.size()));
  }
  return nccl_success;
}

// In the order of the calls; one after the other where a communicator's are on several streams.
int run_in_order(const deferred_calls& all) {
  deferred_calls batch;
  int first = nccl_success;
  const auto run = [&] {
    const int code = batch.empty() ? static_cast<int>(nccl_success) : run_as_group(batch);
    if (first == nccl_success) first = code;
    batch.clear();
  };
  for (const deferred_call& each : all) {
    const bool is_on_other_stream = std::ranges::any_of(batch, [&](const deferred_call& other) {
      return other.communicator == each.communicator && other.operation.stream != each.operation.stream;
    });
    if (is_on_other_stream) run();
    batch.push_back(each);
  }
  run();
  return first;
}

// What a call waits for, were all made one by one: its communicator's calls, and its stream's (of its device:
// NULL streams are each device's own).
struct dependency {
  const attached_communicator* communicator;
  nccl_stream stream;
  bool conflicts_with(const dependency& other) const {
    return communicator == other.communicator || (stream == other.stream && communicator->device() == other.communicator->device());
  }
};

bool has_single_device(const deferred_calls& all) {
  return std::ranges::all_of(
      all, [&](const deferred_call& each) { return each.communicator->device() == all.front().communicator->device(); });
}

// Those of `all` that come before all of NCCL's calls which they share a communicator or a stream with; they
// are moved out of it. What is behind such a call is behind NCCL's, too. A thread of several devices keeps all
// together: it must group its ranks' calls, and so must the other ranks.
deferred_calls extract_calls_before_nccl(const std::vector<nccl_call>& nccl_calls, deferred_calls& all) {
  if (nccl_calls.empty()) return {};
  if (!has_single_device(all)) return {};
  deferred_calls early, late;
  std::vector<dependency> blocked;
  auto next = nccl_calls.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (; next != nccl_calls.end() && next->deferred_before <= i; ++next) blocked.push_back({next->communicator, next->stream});
    const dependency call{all[i].communicator, all[i].operation.stream};
    const bool is_late = std::ranges::any_of(blocked, [&](const dependency& each) { return each.conflicts_with(call); });
    if (is_late) blocked.push_back(call);
    (is_late ? late : early).push_back(all[i]);
  }
  all = std::move(late);
  return early;
}

}  // namespace

bool is_in_group() { return thread_group().depth > 0; }

// What its order needs of NCCL is asked now: at the end NCCL's group is still open when it starts. Where it has
// a call in this group before, it starts behind that end.
int add_to_group(attached_communicator& communicator, const isthmus_operation& operation, preload::call_counter* counter) {
  group_state& group = thread_group();
  const bool is_late =
      std::ranges::any_of(group.nccl_calls, [&](const nccl_call& each) { return each.communicator == &communicator; });
  const int code = is_late ? nccl_success : communicator.order().begin_call(operation.stream, call_owner::isthmus);
  if (code == nccl_success) group.deferred.push_back({&communicator, operation, counter});
  return code;
}

void note_nccl_call(attached_communicator& communicator, nccl_stream stream) {
  group_state& group = thread_group();
  const nccl_call added{&communicator, stream, group.deferred.size()};
  // An alltoall of messages has two for each rank: one event behind them all.
  if (group.nccl_calls.empty() || group.nccl_calls.back() != added) group.nccl_calls.push_back(added);
}

void add_to_group(const pending_communicator& pending) { thread_group().creations.push_back(pending); }

int start_group() {
  const int code = real_nccl().group_start();
  if (code == nccl_success) ++thread_group().depth;
  return code;
}

int end_group() {
  group_state& group = thread_group();
  if (group.depth > 0) --group.depth;
  if (group.depth > 0) return real_nccl().group_end();
  auto deferred = std::exchange(group.deferred, {});
  auto nccl_calls = std::exchange(group.nccl_calls, {});
  const auto creations = std::exchange(group.creations, {});
  const int early = run_in_order(extract_calls_before_nccl(nccl_calls, deferred));
  int order_status = nccl_success;
  for (const nccl_call& each : nccl_calls)
    if (order_status == nccl_success) order_status = each.communicator->order().begin_call(each.stream, call_owner::nccl);
  const int end_status = call_nccl(real_nccl().group_end);
  const int code = order_status != nccl_success ? order_status : end_status;
  if (end_status == nccl_success)
    for (const nccl_call& each : nccl_calls) each.communicator->order().end_call(each.stream, call_owner::nccl);
  nccl_calls.clear();
  group.nccl_calls = std::move(nccl_calls);  // its memory, for the next group
  if (code != nccl_success) return code;
  if (!creations.empty()) attach_all(creations.data(), creations.size());
  const int late = run_in_order(deferred);
  return early != nccl_success ? early : late;
}

int simulate_group_end(void* estimate) {
  group_state& group = thread_group();
  if (group.depth > 0) --group.depth;
  if (group.depth == 0) group = {};
  return call_nccl([&] { return real_nccl().group_simulate_end(estimate); });
}

}  // namespace isthmus::nccl_shim
