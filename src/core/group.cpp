#include "core/group.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/block_map.hpp"
#include "base/interrupt.hpp"
#include "core/communicator.hpp"
#include "core/handles.hpp"
#include "core/worker.hpp"

namespace isthmus::group {
namespace {

// A communicator to be made from another one, by split or shrink.
struct pending_part {
  communicator* parent;
  bool is_split;  // else a shrink, whose parent may have failed
  std::function<std::shared_ptr<communicator>(communicator&)> make;
  isthmus_communicator* result;
};

// What the open group holds. Entry i of the first five vectors is operation i; apart, so that a group of one
// communicator on one backend, the usual one, hands them on as they are.
struct group_state {
  std::vector<isthmus_operation> operations;
  std::vector<communicator*> ranks;
  std::vector<recorder::asked_for> asked;   // the reasons at the end
  std::vector<backend_instance*> backends;  // chosen at the end
  std::vector<const char*> algorithms;
  std::vector<pending_part> parts;
  std::vector<std::vector<std::uint64_t>> arrays;  // copies of counts and displacements
  std::optional<error> invalid;

  // Keeps the memory: the next group of this thread allocates nothing.
  void clear() {
    operations.clear();
    ranks.clear();
    asked.clear();
    backends.clear();
    algorithms.clear();
    parts.clear();
    arrays.clear();
    invalid.reset();
  }
};

// Operations of one communicator on one backend, in the order in which they were added.
struct batch {
  communicator* rank;
  std::size_t rank_order;  // of first use in this group
  backend_instance* backend;
  std::vector<isthmus_operation> operations;
  std::vector<const char*> algorithms;
  std::vector<recorder::asked_for> asked;
};

struct thread_groups {
  std::unique_ptr<group_state> open, spare;
};
thread_groups& current() {
  thread_local thread_groups mine;
  return mine;
}

group_state& state() {
  thread_groups& mine = current();
  if (mine.open == nullptr)
    mine.open = mine.spare != nullptr ? std::move(mine.spare) : std::make_unique<group_state>();
  return *mine.open;
}

const std::uint64_t* keep(group_state& group, const std::uint64_t* array, int size) {
  return group.arrays.emplace_back(array, array + size).data();
}

// A copy that outlives the call: with its own arrays where this rank uses them, which may be garbage elsewhere.
isthmus_operation keep(group_state& group, const isthmus_operation& operation, const membership& ranks) {
  const block_map blocks(operation, ranks.rank, ranks.size);
  const bool sends = blocks.send.shape == extent::counts && blocks.contributes(ranks.rank);
  const bool receives = blocks.recv.shape == extent::counts && blocks.takes(ranks.rank);
  isthmus_operation copy = operation;
  copy.send_counts = sends ? keep(group, operation.send_counts, ranks.size) : nullptr;
  copy.send_displs = sends ? keep(group, operation.send_displs, ranks.size) : nullptr;
  copy.recv_counts = receives ? keep(group, operation.recv_counts, ranks.size) : nullptr;
  copy.recv_displs = receives ? keep(group, operation.recv_displs, ranks.size) : nullptr;
  return copy;
}

// Collects batches in an order that is the same on every rank: by communicator as first used, and within
// one communicator by backend.
std::vector<batch> make_batches(const group_state& group) {
  std::vector<batch> batches;
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    const auto same_rank = [&](const batch& candidate) { return candidate.rank == group.ranks[i]; };
    const auto first = std::find_if(batches.begin(), batches.end(), same_rank);
    auto found = std::find_if(first, batches.end(), [&](const batch& candidate) {
      return same_rank(candidate) && candidate.backend == group.backends[i];
    });
    if (found == batches.end()) {
      const std::size_t order = first == batches.end() ? batches.size() : first->rank_order;
      found = batches.insert(batches.end(), {group.ranks[i], order, group.backends[i], {}, {}, {}});
    }
    found->operations.push_back(group.operations[i]);
    found->algorithms.push_back(group.algorithms[i]);
    found->asked.push_back(group.asked[i]);
  }
  std::sort(batches.begin(), batches.end(), [](const batch& a, const batch& b) {
    return std::pair(a.rank_order, a.backend->index()) < std::pair(b.rank_order, b.backend->index());
  });
  return batches;
}

void run_batch(const batch& work) {
  work.rank->check_alive();
  work.rank->run(*work.backend, work.operations.data(), work.algorithms.data(), work.asked.data(),
                 work.operations.size());
}

// Runs `job`, keeping the first failure of several.
template <typename Job>
void attempt(std::optional<error>& first, Job&& job) noexcept {
  try {
    job();
  } catch (...) {
    if (!first) first = caught_error();
  }
}

// Backends that do not block: all states of one backend between its group_start and group_end.
void run_native(const std::vector<batch>& batches, std::optional<error>& first) {
  std::vector<const isthmus_backend*> seen;
  for (const batch& leader : batches) {
    const isthmus_backend& functions = leader.backend->functions();
    if (leader.backend->is_blocking() || std::find(seen.begin(), seen.end(), &functions) != seen.end()) continue;
    seen.push_back(&functions);
    isthmus_status status = leader.backend->group_start();
    if (status == ISTHMUS_SUCCESS) {
      for (const batch& work : batches)
        if (&work.backend->functions() == &functions) attempt(first, [&] { run_batch(work); });
      status = leader.backend->group_end();
    }
    if (status == ISTHMUS_SUCCESS) continue;
    for (const batch& work : batches)
      if (&work.backend->functions() == &functions)
        attempt(first, [&] { work.rank->fail_batch(*work.backend, status, work.operations.front()); });
  }
}

// Blocking backends: the calling thread serves the first communicator, the worker of each other one its
// own, so that ranks of one process progress together.
void run_blocking(const std::vector<batch>& batches, std::optional<error>& first) {
  std::vector<communicator*> ranks;
  for (const batch& work : batches)
    if (work.backend->is_blocking() && std::find(ranks.begin(), ranks.end(), work.rank) == ranks.end())
      ranks.push_back(work.rank);
  std::vector<std::optional<error>> failures(ranks.size());
  const auto serve = [&](std::size_t index) {
    for (const batch& work : batches)
      if (work.rank == ranks[index] && work.backend->is_blocking())
        attempt(failures[index], [&] { run_batch(work); });
  };
  for (std::size_t index = 1; index < ranks.size(); ++index)
    ranks[index]->own_worker().start([&serve, index] { serve(index); });
  if (!ranks.empty()) serve(0);
  // The workers have no say in their waits; the caller's thread, whose calls these are, has.
  for (std::size_t index = 1; index < ranks.size(); ++index)
    while (!ranks[index]->own_worker().wait_for(0.05))
      if (interrupted()) ranks[index]->abort_on_interrupt();
  for (const auto& failure : failures)
    if (failure && (!first || is_consequence(first->info().status))) first = failure;
}

// They meet other ranks, perhaps of this same thread, so each gets a thread while it lasts.
// `work(index)` for all of them at once, each in a thread of its own since they need each other; their
// failures.
template <typename Work>
std::vector<std::optional<error>> attempt_at_once(std::size_t n, Work&& work) {
  std::vector<std::optional<error>> failures(n);
  std::vector<std::jthread> threads;
  for (std::size_t index = 0; index < n; ++index)
    threads.emplace_back([&, index] { attempt(failures[index], [&] { work(index); }); });
  for (auto& thread : threads) thread.join();
  return failures;
}

void make_parts(const std::vector<pending_part>& parts, std::optional<error>& first) {
  const auto failures = attempt_at_once(parts.size(), [&](std::size_t index) {
    auto part = parts[index].make(*parts[index].parent);
    if (part) *parts[index].result = handle_table::instance().insert(std::move(part));
  });
  for (const auto& failure : failures)
    if (failure && (!first || is_consequence(first->info().status))) first = failure;
}

// Of every communicator that checks.
void run_checks(const std::vector<batch>& batches) {
  std::vector<communicator*> ranks;
  for (const batch& work : batches)
    if (work.rank->has_mismatch_check() && std::find(ranks.begin(), ranks.end(), work.rank) == ranks.end())
      ranks.push_back(work.rank);
  const auto failures = attempt_at_once(ranks.size(), [&](std::size_t index) {
    for (const batch& work : batches)
      if (work.rank == ranks[index])
        work.rank->compare(*work.backend, work.operations.data(), work.algorithms.data(),
                           work.operations.size());
  });
  for (const auto& failure : failures)
    if (failure) throw error(*failure);
}

bool is_one_batch(const group_state& group) {
  const auto all_equal = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [&](auto* value) { return value == values.front(); });
  };
  return !group.operations.empty() && all_equal(group.ranks) && all_equal(group.backends);
}

void run(group_state& group) {
  if (group.invalid) throw error(*group.invalid);
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    // Everything that can be refused is refused before anything starts.
    group.ranks[i]->check_alive();
    const backend_choice choice = group.ranks[i]->choose(group.operations[i]);
    group.backends.push_back(choice.backend);
    group.algorithms.push_back(choice.algorithm);
    group.asked[i].reason = choice.reason;
  }
  if (group.parts.empty() && is_one_batch(group)) {  // no brackets: they join several states
    if (group.ranks[0]->has_mismatch_check())
      group.ranks[0]->compare(*group.backends[0], group.operations.data(), group.algorithms.data(),
                              group.operations.size());
    return group.ranks[0]->run(*group.backends[0], group.operations.data(), group.algorithms.data(),
                               group.asked.data(), group.operations.size());
  }
  for (const auto& part : group.parts)
    if (part.is_split) part.parent->check_alive();
  std::optional<error> first;
  make_parts(group.parts, first);
  const auto batches = make_batches(group);
  run_checks(batches);
  run_native(batches, first);
  run_blocking(batches, first);
  if (first) throw error(*first);
}

// The thread's group, taken out of the thread, so that the work may open groups of its own; its memory goes
// back.
struct taken_group {
  taken_group() : group(std::move(current().open)) {}
  ~taken_group() {
    if (group == nullptr) return;
    group->clear();
    current().spare = std::move(group);
  }
  taken_group(const taken_group&) = delete;
  taken_group& operator=(const taken_group&) = delete;
  std::unique_ptr<group_state> group;  // null: nothing was added
};

// Remembers the first error of the group, so that its end starts nothing.
template <typename Function>
void refuse_on_error(Function&& function) {
  try {
    function();
  } catch (...) {  // the vectors may have been left uneven
    if (!state().invalid) state().invalid = caught_error();
    throw;
  }
}

}  // namespace

constinit thread_local int depth = 0;

void start() { ++depth; }

void end() {
  if (depth == 0)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE, "group_end: this thread has no open group",
                     "call isthmus_group_start first, in the same thread");
  if (--depth > 0) return;
  const taken_group work;
  if (work.group != nullptr) run(*work.group);
}

void add(isthmus_communicator handle, const isthmus_operation& operation) {
  refuse_on_error([&] {
    communicator& rank = handle_table::instance().find(handle);
    rank.check_alive();
    rank.check(operation, true);
    group_state& group = state();
    group.operations.push_back(keep(group, operation, rank.ranks()));
    group.ranks.push_back(&rank);
    group.asked.push_back({rank.own_recorder().moment()});
  });
}

void add_split(isthmus_communicator parent, int color, int key, isthmus_communicator* result) {
  refuse_on_error([&] {
    communicator& rank = handle_table::instance().find(parent);
    rank.check_alive();
    const auto make = [color, key](communicator& of) { return of.split(color, key); };
    state().parts.push_back({&rank, true, make, result});
  });
}

void add_shrink(isthmus_communicator parent, double wait_s, isthmus_communicator* result) {
  refuse_on_error([&] {
    const auto make = [wait_s](communicator& of) { return of.shrink(wait_s); };
    state().parts.push_back({&handle_table::instance().find(parent), false, make, result});
  });
}

bool uses(isthmus_communicator handle) {
  if (!active() || current().open == nullptr) return false;
  const communicator& rank = handle_table::instance().find(handle);
  const group_state& group = state();
  return std::find(group.ranks.begin(), group.ranks.end(), &rank) != group.ranks.end() ||
         std::any_of(group.parts.begin(), group.parts.end(), [&](auto& each) { return each.parent == &rank; });
}

}  // namespace isthmus::group
