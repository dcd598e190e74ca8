#include "core/group.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/block_map.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/message_order.hpp"
#include "base/tables.hpp"
#include "core/communicator.hpp"
#include "core/handles.hpp"
#include "core/worker.hpp"

namespace isthmus::group {
namespace {

// A communicator that the outermost end() creates from `parent`, by split or shrink.
struct pending_communicator {
  communicator* parent;
  bool is_split;  // false: shrink, whose parent may have failed
  std::function<std::shared_ptr<communicator>(communicator&)> make;
  isthmus_communicator* result;
};

// Contents of the open group. Entry i of the first five vectors belongs to operation i. They are
// separate vectors so that a group of one communicator on one backend, the common case, passes them to
// the backend without a copy.
struct group_state {
  std::vector<isthmus_operation> operations;
  std::vector<communicator*> ranks;
  std::vector<recorder::request_info> requests;  // end() fills in the reasons
  std::vector<backend_instance*> backends;       // selected by end()
  std::vector<int> algorithms;
  std::vector<pending_communicator> pending;
  std::vector<std::vector<std::uint64_t>> arrays;  // copies of counts and displacements
  std::optional<error> invalid;

  // Keeps the capacity of the vectors, so that the next group of this thread allocates nothing.
  void clear() {
    operations.clear();
    ranks.clear();
    requests.clear();
    backends.clear();
    algorithms.clear();
    pending.clear();
    arrays.clear();
    invalid.reset();
  }
};

// The operations of one communicator on one backend in one phase, in call order.
struct batch {
  communicator* rank;
  std::size_t rank_order;  // position of the communicator's first use in this group
  backend_instance* backend;
  int phase;  // the phases run one after the other
  std::vector<isthmus_operation> operations;
  std::vector<int> algorithms;
  std::vector<recorder::request_info> requests;
};

struct thread_groups {
  std::unique_ptr<group_state> open_group, spare_group;
};
thread_groups& current_groups() {
  thread_local thread_groups groups;
  return groups;
}

group_state& state() {
  thread_groups& groups = current_groups();
  if (groups.open_group == nullptr)
    groups.open_group =
        groups.spare_group != nullptr ? std::move(groups.spare_group) : std::make_unique<group_state>();
  return *groups.open_group;
}

// Sets the phases of the operations of one communicator (indices `own`). If it uses several backends, its messages run after
// its collectives, as in NCCL.
void set_phases(const group_state& group, const std::vector<std::size_t>& own, std::vector<int>& phases) {
  const auto is_elsewhere = [&](std::size_t i) { return group.backends[i] != group.backends[own.front()]; };
  if (std::none_of(own.begin(), own.end(), is_elsewhere)) return;
  std::vector<std::size_t> indices;
  std::vector<ordered_message> messages;
  for (const std::size_t i : own) {
    const isthmus_operation& operation = group.operations[i];
    if (!is_point_to_point(operation.collective)) continue;
    const bool is_buffered = (group.backends[i]->capabilities() & ISTHMUS_BACKEND_BUFFERED_SENDS) != 0;
    indices.push_back(i);
    messages.push_back({operation.root, operation.collective == ISTHMUS_SEND, group.backends[i], is_buffered});
  }
  const bool has_buffered = std::any_of(messages.begin(), messages.end(),
                                        [](const ordered_message& each) { return each.is_buffered; });
  const std::vector<int> order = has_buffered ? message_phases(messages, group.ranks[own.front()]->ranks().rank)
                                              : std::vector<int>(messages.size(), 0);
  for (std::size_t i = 0; i < indices.size(); ++i) phases[indices[i]] = 1 + order[i];
}

std::vector<int> phases_of(const group_state& group) {
  std::vector<int> phases(group.operations.size(), 0);
  std::vector<const communicator*> visited;
  for (const communicator* const rank : group.ranks) {
    if (std::find(visited.begin(), visited.end(), rank) != visited.end()) continue;
    visited.push_back(rank);
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < group.ranks.size(); ++i)
      if (group.ranks[i] == rank) own.push_back(i);
    set_phases(group, own, phases);
  }
  return phases;
}

// Collects batches in the same order on every rank: by phase, first use of the communicator, and backend.
std::vector<batch> make_batches(const group_state& group) {
  std::vector<batch> batches;
  const std::vector<int> phases = phases_of(group);
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    const auto has_same_rank = [&](const batch& candidate) { return candidate.rank == group.ranks[i]; };
    const auto first = std::find_if(batches.begin(), batches.end(), has_same_rank);
    auto match = std::find_if(first, batches.end(), [&](const batch& candidate) {
      return has_same_rank(candidate) && candidate.backend == group.backends[i] && candidate.phase == phases[i];
    });
    if (match == batches.end()) {
      const std::size_t order = first == batches.end() ? batches.size() : first->rank_order;
      match = batches.insert(batches.end(), {group.ranks[i], order, group.backends[i], phases[i], {}, {}, {}});
    }
    match->operations.push_back(group.operations[i]);
    match->algorithms.push_back(group.algorithms[i]);
    match->requests.push_back(group.requests[i]);
  }
  std::sort(batches.begin(), batches.end(), [](const batch& a, const batch& b) {
    return std::tuple(a.phase, a.rank_order, a.backend->index()) <
           std::tuple(b.phase, b.rank_order, b.backend->index());
  });
  return batches;
}

void run_batch(const batch& work) {
  work.rank->check_alive();
  work.rank->run(*work.backend, work.operations.data(), work.algorithms.data(), work.requests.data(),
                 work.operations.size());
}

// Runs `job` and stores its failure in `first_error`, unless that already holds an error.
template <typename Job>
void keep_first_error(std::optional<error>& first_error, Job&& job) {
  auto failure = capture_error(job);
  if (!first_error) first_error = std::move(failure);
}

// The option starts_together: waits until the peers of the batches have reached the same phase.
void reach_together(start_barrier::phase reached, const std::vector<batch>& batches) {
  std::vector<communicator*> ranks;
  for (const batch& work : batches) {
    work.rank->announce(reached, *work.backend, work.operations.data(), work.operations.size());
    ranks.push_back(work.rank);
  }
  communicator::wait_for_local_ranks(reached, ranks.data(), ranks.size());
}

// Nonblocking backends: runs all states of one backend between its group_start and group_end.
void run_native_phase(std::span<const batch> batches, std::optional<error>& first_error) {
  std::vector<const isthmus_backend*> started_backends;
  for (const batch& representative : batches) {
    const isthmus_backend& functions = representative.backend->functions();
    if (representative.backend->is_blocking() ||
        std::find(started_backends.begin(), started_backends.end(), &functions) != started_backends.end())
      continue;
    started_backends.push_back(&functions);
    isthmus_status status = representative.backend->group_start();
    if (status == ISTHMUS_SUCCESS) {
      for (const batch& work : batches)
        if (&work.backend->functions() == &functions) keep_first_error(first_error, [&] { run_batch(work); });
      status = representative.backend->group_end();
    }
    if (status == ISTHMUS_SUCCESS) continue;
    for (const batch& work : batches)
      if (&work.backend->functions() == &functions)
        keep_first_error(first_error,
                         [&] { work.rank->fail_batch(*work.backend, status, work.operations.front()); });
  }
}

void run_native(std::span<const batch> batches, std::optional<error>& first_error) {
  while (!batches.empty()) {
    const auto is_later = [&](const batch& work) { return work.phase != batches.front().phase; };
    const auto end = std::find_if(batches.begin(), batches.end(), is_later);
    const auto n = static_cast<std::size_t>(end - batches.begin());
    run_native_phase(batches.first(n), first_error);
    batches = batches.subspan(n);
  }
}

// Blocking backends: the calling thread runs the first communicator, and worker threads run the others, so that
// all ranks of a process make progress.
void run_blocking(const std::vector<batch>& batches, std::optional<error>& first_error) {
  std::vector<communicator*> ranks;
  for (const batch& work : batches)
    if (work.backend->is_blocking() && std::find(ranks.begin(), ranks.end(), work.rank) == ranks.end())
      ranks.push_back(work.rank);
  std::vector<std::optional<error>> failures(ranks.size());
  const auto run_rank = [&](std::size_t index) {
    for (const batch& work : batches)
      if (work.rank == ranks[index] && work.backend->is_blocking())
        keep_first_error(failures[index], [&] { run_batch(work); });
  };
  for (std::size_t index = 1; index < ranks.size(); ++index)
    ranks[index]->own_worker().start([&run_rank, index] { run_rank(index); });
  if (!ranks.empty()) run_rank(0);
  // Only the calling thread can be interrupted. It passes the interrupt to the ranks on worker threads.
  for (std::size_t index = 1; index < ranks.size(); ++index)
    while (!ranks[index]->own_worker().wait_for(0.05))
      if (is_interrupted()) ranks[index]->failures().abort_on_interrupt();
  for (const auto& failure : failures) keep_root_cause(first_error, failure);
}

void create_pending(const std::vector<pending_communicator>& pending, std::optional<error>& first_error) {
  const auto failure = run_concurrently(pending.size(), [&](std::size_t index) {
    auto new_communicator = pending[index].make(*pending[index].parent);
    if (new_communicator) *pending[index].result = handle_table::instance().insert(std::move(new_communicator));
  });
  keep_root_cause(first_error, failure);
}

// Runs the mismatch check on every communicator for which the check is enabled.
void run_checks(const std::vector<batch>& batches) {
  std::vector<communicator*> ranks;
  for (const batch& work : batches)
    if (work.rank->has_mismatch_check() && std::find(ranks.begin(), ranks.end(), work.rank) == ranks.end())
      ranks.push_back(work.rank);
  const auto failure = run_concurrently(ranks.size(), [&](std::size_t index) {
    for (const batch& work : batches)
      if (work.rank == ranks[index])
        work.rank->compare(*work.backend, work.operations.data(), work.algorithms.data(),
                           work.operations.size());
  });
  if (failure) throw error(*failure);
}

bool is_one_batch(const group_state& group) {
  const auto are_all_equal = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [&](auto* value) { return value == values.front(); });
  };
  return !group.operations.empty() && are_all_equal(group.ranks) && are_all_equal(group.backends);
}

void run(group_state& group) {
  if (group.invalid) throw error(*group.invalid);
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    // All errors that can be detected early are thrown before any operation starts.
    group.ranks[i]->check_alive();
    const backend_choice choice = group.ranks[i]->choose(group.operations[i]);
    group.backends.push_back(choice.backend);
    group.algorithms.push_back(choice.algorithm);
    group.requests[i].reason = choice.reason;
  }
  // group_start and group_end are only needed to join several states.
  if (group.pending.empty() && is_one_batch(group)) {
    if (group.ranks[0]->has_mismatch_check())
      group.ranks[0]->compare(*group.backends[0], group.operations.data(), group.algorithms.data(),
                              group.operations.size());
    return group.ranks[0]->run_together(*group.backends[0], group.operations.data(), group.algorithms.data(),
                                        group.requests.data(), group.operations.size());
  }
  for (const auto& item : group.pending)
    if (item.is_split) item.parent->check_alive();
  std::optional<error> first_error;
  create_pending(group.pending, first_error);
  const auto batches = make_batches(group);
  run_checks(batches);
  keep_first_error(first_error, [&] { reach_together(start_barrier::called, batches); });
  run_native(batches, first_error);
  keep_first_error(first_error, [&] { reach_together(start_barrier::started, batches); });
  run_blocking(batches, first_error);
  if (first_error) throw error(*first_error);
}

// The group of a thread, detached from the thread so that its work can open new groups. The destructor returns
// the memory to the thread.
struct detached_group {
  detached_group() : group(std::move(current_groups().open_group)) {}
  ~detached_group() {
    if (group == nullptr) return;
    group->clear();
    current_groups().spare_group = std::move(group);
  }
  detached_group(const detached_group&) = delete;
  detached_group& operator=(const detached_group&) = delete;
  std::unique_ptr<group_state> group;  // null: empty group
};

// Stores the first error of the group, so that end() starts nothing.
template <typename Function>
void record_error(Function&& function) {
  try {
    function();
  } catch (...) {  // the vectors may now have different lengths
    if (!state().invalid) state().invalid = current_error();
    throw;
  }
}

}  // namespace

constinit thread_local int depth = 0;

void start() { ++depth; }

void reject_active(const char* function) {
  if (is_active())
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     fmt::format("{}: the call is inside a group", function),
                     "call it before isthmus_group_start or after isthmus_group_end, from one thread per rank");
}

void end() {
  if (depth == 0)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE, "group_end: this thread has no open group",
                     "call isthmus_group_start first, in the same thread");
  if (--depth > 0) return;
  const detached_group work;
  if (work.group != nullptr) run(*work.group);
}

void add(isthmus_communicator handle, const isthmus_operation& operation) {
  record_error([&] {
    communicator& rank = handle_table::instance().find(handle);
    rank.check_alive();
    rank.check(operation, true);
    group_state& group = state();
    group.operations.push_back(copy_operation(operation, rank.ranks().rank, rank.ranks().size, group.arrays));
    group.ranks.push_back(&rank);
    group.requests.push_back({rank.own_recorder().trace_ticks()});
  });
}

void add_split(isthmus_communicator parent, int color, int key, isthmus_communicator* result) {
  record_error([&] {
    communicator& rank = handle_table::instance().find(parent);
    rank.check_alive();
    const auto make = [color, key](communicator& parent_rank) { return parent_rank.split(color, key); };
    state().pending.push_back({&rank, true, make, result});
  });
}

void add_shrink(isthmus_communicator parent, double wait_s, isthmus_communicator* result) {
  record_error([&] {
    const auto make = [wait_s](communicator& parent_rank) { return parent_rank.shrink(wait_s); };
    state().pending.push_back({&handle_table::instance().find(parent), false, make, result});
  });
}

bool has_work_for(isthmus_communicator handle) {
  if (!is_active() || current_groups().open_group == nullptr) return false;
  const communicator& rank = handle_table::instance().find(handle);
  const group_state& group = state();
  return std::find(group.ranks.begin(), group.ranks.end(), &rank) != group.ranks.end() ||
         std::any_of(group.pending.begin(), group.pending.end(),
                     [&](auto& each) { return each.parent == &rank; });
}

}  // namespace isthmus::group
