#include "frontends/nccl/groups.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "frontends/nccl/inside_nccl.hpp"

namespace isthmus::nccl_shim {
namespace {

struct taken_call {
  attached_communicator* on;
  isthmus_operation what;
  preload::call_counter* count;
};

struct passed_call {
  attached_communicator* on;
  nccl_stream stream;
  std::size_t taken_before;  // how many calls that Isthmus takes the group had by then
  bool operator==(const passed_call&) const = default;
};

using calls = std::vector<taken_call>;

struct group {
  int depth = 0;
  calls taken;
  std::vector<passed_call> passed;
  std::vector<pending_communicator> creations;
};

group& this_threads() {
  thread_local group only;
  return only;
}

// One group of Isthmus: no communicator has calls on two streams in it.
int run_together(const calls& some) {
  const preload::stopwatch time(statistics());
  for (const taken_call& each : some)
    if (const int code = each.on->order().before(each.what.stream, call_owner::isthmus); code != nccl_success)
      return code;
  isthmus_status status = isthmus_group_start();
  for (const taken_call& each : some)
    if (status == ISTHMUS_SUCCESS) status = isthmus_enqueue(each.on->handle(), &each.what);
  const isthmus_status end_status = isthmus_group_end();
  if (status == ISTHMUS_SUCCESS) status = end_status;
  if (status != ISTHMUS_SUCCESS) {
    const int code = some.front().on->handle_failure(status);
    return code == attached_communicator::pass_to_nccl ? static_cast<int>(nccl_remote_error) : code;
  }
  for (const taken_call& each : some) {
    each.on->order().after(each.what.stream, call_owner::isthmus);
    if (each.count != nullptr)
      each.count->add(bytes_of(each.what), time.nanoseconds() / static_cast<std::int64_t>(some.size()));
  }
  return nccl_success;
}

// In the order of the calls; one after the other where a communicator's are on several streams.
int run_all(const calls& all) {
  calls together;
  int first = nccl_success;
  const auto run = [&] {
    const int code = together.empty() ? static_cast<int>(nccl_success) : run_together(together);
    if (first == nccl_success) first = code;
    together.clear();
  };
  for (const taken_call& each : all) {
    const bool clashes = std::ranges::any_of(together, [&](const taken_call& other) {
      return other.on == each.on && other.what.stream != each.what.stream;
    });
    if (clashes) run();
    together.push_back(each);
  }
  run();
  return first;
}

// What a call waits for, were all made one by one: its communicator's calls, and its stream's (of its device:
// NULL streams are each device's own).
struct queue {
  const attached_communicator* on;
  nccl_stream stream;
  bool meets(const queue& other) const {
    return on == other.on || (stream == other.stream && on->device() == other.on->device());
  }
};

bool drives_one_device(const calls& all) {
  return std::ranges::all_of(
      all, [&](const taken_call& each) { return each.on->device() == all.front().on->device(); });
}

// Those of `all` that come before all of NCCL's calls which they share a communicator or a stream with; they
// are moved out of it. What is behind such a call is behind NCCL's, too. A thread of several devices keeps all
// together: it must group its ranks' calls, and so must the other ranks.
calls take_those_before(const std::vector<passed_call>& passed, calls& all) {
  if (passed.empty()) return {};
  if (!drives_one_device(all)) return {};
  calls early, late;
  std::vector<queue> behind;
  auto next = passed.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (; next != passed.end() && next->taken_before <= i; ++next) behind.push_back({next->on, next->stream});
    const queue own{all[i].on, all[i].what.stream};
    const bool is_late = std::ranges::any_of(behind, [&](const queue& each) { return each.meets(own); });
    if (is_late) behind.push_back(own);
    (is_late ? late : early).push_back(all[i]);
  }
  all = std::move(late);
  return early;
}

}  // namespace

bool in_group() { return this_threads().depth > 0; }

// What its order needs of NCCL is asked now: at the end NCCL's group is still open when it starts. Where it has
// a call in this group before, it starts behind that end.
int add_to_group(attached_communicator& on, const isthmus_operation& operation, preload::call_counter* count) {
  group& mine = this_threads();
  const bool is_late =
      std::ranges::any_of(mine.passed, [&](const passed_call& each) { return each.on == &on; });
  const int code = is_late ? nccl_success : on.order().before(operation.stream, call_owner::isthmus);
  if (code == nccl_success) mine.taken.push_back({&on, operation, count});
  return code;
}

void note_in_group(attached_communicator& on, nccl_stream stream) {
  group& mine = this_threads();
  const passed_call added{&on, stream, mine.taken.size()};
  // An alltoall of messages has two for each rank: one event behind them all.
  if (mine.passed.empty() || mine.passed.back() != added) mine.passed.push_back(added);
}

void add_to_group(const pending_communicator& pending) { this_threads().creations.push_back(pending); }

int start_group() {
  const int code = real_nccl().group_start();
  if (code == nccl_success) ++this_threads().depth;
  return code;
}

int end_group() {
  group& mine = this_threads();
  if (mine.depth > 0) --mine.depth;
  if (mine.depth > 0) return real_nccl().group_end();
  auto taken = std::exchange(mine.taken, {});
  auto passed = std::exchange(mine.passed, {});
  const auto creations = std::exchange(mine.creations, {});
  const int early = run_all(take_those_before(passed, taken));
  int order_status = nccl_success;
  for (const passed_call& each : passed)
    if (order_status == nccl_success) order_status = each.on->order().before(each.stream, call_owner::nccl);
  const int end_status = call_nccl(real_nccl().group_end);
  const int code = order_status != nccl_success ? order_status : end_status;
  if (end_status == nccl_success)
    for (const passed_call& each : passed) each.on->order().after(each.stream, call_owner::nccl);
  passed.clear();
  mine.passed = std::move(passed);  // its memory, for the next group
  if (code != nccl_success) return code;
  if (!creations.empty()) attach_all(creations.data(), creations.size());
  const int late = run_all(taken);
  return early != nccl_success ? early : late;
}

int simulate_end_of_group(void* estimate) {
  group& mine = this_threads();
  if (mine.depth > 0) --mine.depth;
  if (mine.depth == 0) mine = {};
  return call_nccl([&] { return real_nccl().group_simulate_end(estimate); });
}

}  // namespace isthmus::nccl_shim
