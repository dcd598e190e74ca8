#include "frontends/nccl/groups.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace isthmus::nccl_shim {
namespace {

struct taken_call {
  communicator* on;
  isthmus_operation what;
  preload::tally* count;
};

struct group {
  int depth = 0;
  std::vector<taken_call> taken;
  std::vector<std::pair<communicator*, nccl_stream>> passed;
  std::vector<creation> creations;
};

group& this_threads() {
  thread_local group only;
  return only;
}

using calls = std::vector<taken_call>;

// One group of Isthmus: no communicator has calls on two streams in it.
int run_together(const calls& some) {
  const preload::stopwatch time(books());
  for (const taken_call& each : some) each.on->order().before(each.what.stream, carrier::isthmus);
  isthmus_status status = isthmus_group_start();
  for (const taken_call& each : some)
    if (status == ISTHMUS_SUCCESS) status = isthmus_enqueue(each.on->handle(), &each.what);
  const isthmus_status ended = isthmus_group_end();
  if (status == ISTHMUS_SUCCESS) status = ended;
  if (status != ISTHMUS_SUCCESS) {
    const int code = some.front().on->outcome_of(status);
    return code == communicator::to_nccl ? static_cast<int>(nccl_remote_error) : code;
  }
  for (const taken_call& each : some) {
    each.on->order().after(each.what.stream, carrier::isthmus);
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

}  // namespace

bool in_group() { return this_threads().depth > 0; }

void add_to_group(communicator& on, const isthmus_operation& operation, preload::tally* count) {
  this_threads().taken.push_back({&on, operation, count});
}

void note_in_group(communicator& on, nccl_stream stream) { this_threads().passed.emplace_back(&on, stream); }

void add_to_group(const creation& wanted) { this_threads().creations.push_back(wanted); }

int start_group() {
  const int code = real_nccl().group_start();
  if (code == nccl_success) ++this_threads().depth;
  return code;
}

int end_group() {
  group& mine = this_threads();
  if (mine.depth > 0) --mine.depth;
  if (mine.depth > 0) return real_nccl().group_end();
  const auto taken = std::exchange(mine.taken, {});
  const auto passed = std::exchange(mine.passed, {});
  const auto creations = std::exchange(mine.creations, {});
  for (const auto& [on, stream] : passed) on->order().before(stream, carrier::nccl);
  const int code = real_nccl().group_end();
  for (const auto& [on, stream] : passed) on->order().after(stream, carrier::nccl);
  if (code != nccl_success) return code;
  if (!creations.empty()) attach_all(creations.data(), creations.size());
  return run_all(taken);
}

}  // namespace isthmus::nccl_shim
