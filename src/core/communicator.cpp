#include "core/communicator.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/exchange.hpp"
#include "core/worker.hpp"
#include "failure/wait.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus {
namespace {

// Converts the ranks of a failed creation to ranks of the parent, because callers know no others. The text may contain
// ranks of the new communicator, so the message says which these are.
error with_parent_ranks(failure_info failure, const std::vector<int>& parent_ranks) {
  const auto is_same = [index = 0](int parent_rank) mutable { return parent_rank == index++; };
  if (std::ranges::all_of(parent_ranks, is_same)) return error(failure);
  std::vector<int> ranks(failure.failed_ranks().begin(), failure.failed_ranks().end());
  if (ranks.empty())
    for (std::size_t rank = 0; rank < parent_ranks.size(); ++rank) ranks.push_back(static_cast<int>(rank));
  std::vector<int> old_ranks;
  for (const int rank : ranks) old_ranks.push_back(parent_ranks[static_cast<std::size_t>(rank)]);
  if (!failure.failed_ranks().empty()) failure.set_failed_ranks(old_ranks);
  if (failure.rank >= 0) failure.rank = parent_ranks[static_cast<std::size_t>(failure.rank)];
  copy_text(failure.message, sizeof failure.message,
            fmt::format("{} of the parent {} {} in this text: {}", recorder::list_of(old_ranks),
                        ranks.size() == 1 ? "is" : "are", recorder::list_of(ranks), failure.message));
  return error(failure);
}

}  // namespace

communicator::communicator(std::shared_ptr<bootstrap> control, communicator_setup setup)
    : m_setup(std::move(setup)),
      m_control(std::move(control)),
      m_ranks(exchange_membership(*m_control, {m_setup.device, m_setup.rules_text(), m_setup.failure})),
      m_recorder(m_ranks, m_setup.timeout_s, m_setup.trace),
      m_backends(*this, m_ranks, m_setup),
      m_failures(*m_control, m_ranks, m_recorder, m_setup.timeout_s, [this] { m_backends.abort(); }),
      m_dispatcher(*m_setup.rules, m_ranks, m_heap, m_backends, m_setup.external_backends, m_recorder),
      m_scope{m_ranks.rank, m_ranks.size, m_ranks.device.platform, false, m_setup.collectives},
      m_has_mismatch_check(m_setup.rules->check && m_ranks.size > 1) {}

communicator::~communicator() {
  m_failures.end_watch();
  try {
    close();
  } catch (const error& failure) {
    log(log_level::warning, "rank {}: while destroying a communicator: {}", m_ranks.rank, failure.what());
  }
}

std::shared_ptr<communicator> communicator::create(std::unique_ptr<bootstrap> control,
                                                   communicator_setup setup) {
  return create(std::move(control), std::move(setup), {}, nullptr);
}

std::shared_ptr<communicator> communicator::create(std::unique_ptr<bootstrap> new_control,
                                                   communicator_setup setup, split_states parent_states,
                                                   const std::shared_ptr<communicator>& parent) {
  const std::shared_ptr<bootstrap> control = std::move(new_control);
  std::shared_ptr<communicator> created;
  try {
    created.reset(new communicator(control, std::move(setup)));
    created->m_failures.map_records();
    created->m_backends.agree(*created->m_control, created->m_recorder);
    created->m_backends.create(*created->m_control, std::move(parent_states));
  } catch (const error& failure) {
    // A rank that is blocked in a backend already knows the root cause, but the interrupted exchange does not.
    const bool has_root_cause = is_secondary_status(failure.info().status) && created && created->is_aborted();
    throw with_parent_ranks(has_root_cause ? *created->failure() : failure.info(), control->parent_ranks());
  } catch (...) {  // only on this rank, for example if there is no memory; the others wait in an exchange
    failure_info failure = current_error().info();
    failure.rank = control->rank();
    failure.set_failed_ranks(std::array{failure.rank});
    control->publish_failure(failure);
    throw with_parent_ranks(failure, control->parent_ranks());
  }
  if (created->m_setup.starts_together && created->m_ranks.process_size > 1)
    created->m_start_barrier.emplace(created->m_ranks);
  created->m_parent = parent;
  created->m_is_subcommunicator = parent != nullptr;
  const auto failures_of = [](const std::shared_ptr<communicator>& rank) {
    return rank ? std::shared_ptr<failure_state>(rank, &rank->m_failures) : nullptr;
  };
  failure_state::join(failures_of(created), failures_of(parent));
  // Only calls into the user's MPI, into device libraries and into plug-ins can block without a timeout.
  if (created->m_control->mpi_table() != nullptr || created->m_ranks.device.platform != ISTHMUS_PLATFORM_HOST ||
      created->m_backends.is_any_usable_plugin())
    created->m_failures.watch_calls();
  return created;
}

std::shared_ptr<communicator> communicator::split(int color, int key) {
  check_alive();
  if (color < ISTHMUS_NO_COLOR)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("communicator_split: color = {} must be >= 0 or ISTHMUS_NO_COLOR (-1)", color),
                     "ranks with the same color form a communicator");
  std::unique_ptr<bootstrap> control;
  split_states states;
  exchange(recorder::setup_step::split, 0, [&] {
    control = m_control->split(color, key);
    states = m_backends.split(color, key);
    gather_votes(*m_control, no_value{}, std::nullopt);  // skipped by a rank whose backend threw
  });
  if (!control) return nullptr;
  return create(std::move(control), m_setup, std::move(states), nullptr);
}

// Abort first. This ends the waits of other ranks on this communicator, so that they can join the shrink.
std::shared_ptr<communicator> communicator::shrink(double wait_s) {
  failure_info reason =
      make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
                 fmt::format("isthmus_communicator_shrink was called on rank {}", m_ranks.rank),
                 "call isthmus_communicator_shrink on this rank as well and continue with the new communicator")
          .info();
  reason.rank = m_ranks.rank;
  abort(reason);
  for (int losses = 0;; ++losses) {
    survivors remaining = m_control->shrink(wait_s > 0 ? wait_s : timeout_s());
    try {
      return create(std::move(remaining.control), m_setup, {}, nullptr);
    } catch (const error& failure) {
      // Another rank was lost, so the remaining ranks agree again.
      if (losses == m_ranks.size || !m_control->has_lost_any_of(remaining.ranks)) throw;
      log(log_level::info, "rank {}: shrink: retrying without the ranks lost during the last attempt: {}",
          m_ranks.rank, failure.what());
    }
  }
}

error communicator::annotate(const error& failure, const isthmus_operation& operation) const {
  failure_info info = failure.info();
  info.rank = m_ranks.rank;
  if (isthmus_collective_name(operation.collective) != nullptr) info.collective = operation.collective;
  return error(info);
}

void communicator::check(const isthmus_operation& operation, bool is_grouped) const {
  validation_scope scope = m_scope;
  scope.is_grouped = is_grouped;
  try {
    validate(operation, scope);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
}

backend_choice communicator::choose(const isthmus_operation& operation) {
  try {
    return m_dispatcher.choose(operation);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
}

void communicator::enqueue(const isthmus_operation& operation) {
  check_alive();
  recorder::request_info request{m_recorder.trace_ticks()};
  backend_choice choice;
  try {
    validate(operation, m_scope);
    choice = m_dispatcher.choose(operation);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
  if (m_has_mismatch_check) [[unlikely]]
    compare(*choice.backend, &operation, &choice.algorithm, 1);
  request.reason = choice.reason;
  run_together(*choice.backend, &operation, &choice.algorithm, &request, 1);
}

void communicator::announce(start_barrier::phase reached, const backend_instance& backend,
                            const isthmus_operation* operations, std::size_t n) {
  if (m_start_barrier && !backend.is_blocking()) m_start_barrier->announce(reached, operations, n);
}

void communicator::wait_for_local_ranks(start_barrier::phase reached, communicator* const* ranks,
                                        std::size_t n) {
  const std::span<communicator* const> all(ranks, n);
  struct forget_at_end {
    std::span<communicator* const> ranks;
    ~forget_at_end() {
      for (communicator* rank : ranks)
        if (rank->m_start_barrier) rank->m_start_barrier->forget();
    }
  } const end{all};
  const auto is_met = [&] {
    bool has_peers = false;
    for (communicator* rank : all) {
      if (!rank->m_start_barrier || !rank->m_start_barrier->has_any_peers()) continue;
      has_peers = true;
      if (reached == start_barrier::called && rank->m_start_barrier->is_any_met()) return true;
      if (reached == start_barrier::started && !rank->m_start_barrier->are_all_met()) return false;
    }
    return reached == start_barrier::started || !has_peers;
  };
  constexpr std::uint64_t spin_limit = 2000;
  for (backoff wait(spin_limit); !is_met();) {
    if (wait.spin()) {
      relax_core();
      continue;
    }
    const auto waited = wait.measure();
    for (communicator* rank : all)
      if (rank->m_start_barrier) rank->check_local_ranks(std::chrono::duration<double>(waited).count());
    wait.pause();
  }
}

// Part of a wait for the ranks of this process. Throws if the communicator was aborted or the wait took too long.
void communicator::check_local_ranks(double waited_s) {
  m_failures.poll();
  if (is_interrupted()) m_failures.abort_on_interrupt();
  check_alive();
  if (waited_s <= timeout_s()) return;
  const auto [collective, missing_ranks] = m_start_barrier->missing();
  if (missing_ranks.empty()) return;
  failure_info failure =
      make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                 fmt::format("{}: {} of this process did not make the matching call within {} s",
                             row_of(collective).name, recorder::list_of(missing_ranks), timeout_s()),
                 "issue the calls of each rank in its own thread, or those of all ranks in one group")
          .with_failed_ranks(missing_ranks)
          .info();
  failure.rank = m_ranks.rank;
  failure.collective = collective;
  m_failures.abort(failure);
  throw error(failure);
}

// The calls start together because the driver may let a thread wait for kernels or locks of other devices, for
// example in cuMemFreeHost. A rank that waits there before its call must not be awaited by a running kernel. The
// calls return together because such a thread may also block the start of another rank's kernel.
void communicator::run_together(backend_instance& backend, const isthmus_operation* operations,
                                const int* algorithms, const recorder::request_info* request, std::size_t n) {
  if (!m_start_barrier) [[likely]]
    return run(backend, operations, algorithms, request, n);
  communicator* const self = this;
  announce(start_barrier::called, backend, operations, n);
  wait_for_local_ranks(start_barrier::called, &self, 1);
  run(backend, operations, algorithms, request, n);
  announce(start_barrier::started, backend, operations, n);
  wait_for_local_ranks(start_barrier::started, &self, 1);
}

void communicator::run(backend_instance& backend, const isthmus_operation* operations, const int* algorithms,
                       const recorder::request_info* request, std::size_t n) {
  m_recorder.begin(backend.index(), operations, algorithms, n, request);
  const isthmus_status status = backend.enqueue(operations, algorithms, n);
  if (status != ISTHMUS_SUCCESS) [[unlikely]]
    fail_batch(backend, status, *operations);
  m_recorder.end(true);
}

void communicator::fail_batch(backend_instance& backend, isthmus_status status,
                              const isthmus_operation& first) {
  failure_info failure = backend.take_failure(status, row_of(first.collective).name);
  m_recorder.end(false);
  if (failure.collective < 0) failure.collective = first.collective;
  if (const auto reported_failure = m_failures.find_earlier_report(failure)) throw error(*reported_failure);
  // If another rank's failure aborted this rank, report that failure, because it is the root cause.
  if (!m_failures.abort_on_backend_failure(failure)) check_alive();
  throw error(failure);
}

worker_thread& communicator::own_worker() {
  if (!m_worker) m_worker = std::make_unique<worker_thread>();
  return *m_worker;
}

// Runs `work`, which exchanges data with other ranks. If another rank fails in the meantime, throws that rank's
// failure as the root cause.
template <typename Work>
void communicator::exchange(recorder::setup_step kind, std::uint64_t count, Work&& work) {
  if (m_has_mismatch_check) {
    m_recorder.begin(kind, count);
    compare_texts(recorder::text_of(kind, count));
  }
  m_recorder.begin(kind, count);
  run_recorded(std::forward<Work>(work));
}

// Runs `work` and records its end; the caller has recorded its start.
template <typename Work>
void communicator::run_recorded(Work&& work) {
  try {
    work();
    m_recorder.end(true);
  } catch (const error& failure) {
    const failure_info reported_failure = m_failures.causes().with_diagnosis(failure.info());
    m_recorder.end(false);
    if (is_secondary_status(reported_failure.status)) {
      m_failures.wait_for_failures(0);
      check_alive();
    }
    if (m_control->is_out_of_sync()) m_failures.abort_out_of_sync(reported_failure);
    throw error(reported_failure);
  } catch (...) {
    m_recorder.end(false);
    throw;
  }
}

void communicator::compare_texts(const std::string& contribution) {
  run_recorded([&] { compare_calls(contribution); });
}

// A wait inside a subcommunicator is part of a call on the parent.
bool communicator::make_parent_progress() const {
  if (progress_suspension::is_active()) return false;
  const auto parent = m_parent.lock();
  return parent && parent->make_progress();
}

std::optional<failure_info> communicator::failure() {
  m_failures.poll();
  m_failures.poll_node();
  for (const auto& backend : m_backends) {
    if (is_aborted()) break;
    if (const isthmus_status status = backend->poll(); status != ISTHMUS_SUCCESS) {
      failure_info failure = backend->take_failure(status, "a pending operation");
      m_failures.abort_on_backend_failure(failure);
    }
  }
  return m_failures.failure();
}

void communicator::synchronize() {
  for (const auto& backend : m_backends) {
    if (is_aborted()) return;
    const isthmus_status status = backend->synchronize();
    if (status == ISTHMUS_SUCCESS) continue;
    failure_info failure = backend->take_failure(status, "synchronize");
    if (!m_failures.abort_on_backend_failure(failure)) check_alive();
    throw error(failure);
  }
}

void communicator::close() {
  std::optional<error> failure;
  if (!m_failures.is_closed()) {
    try {
      synchronize();
    } catch (const error& synchronize_error) {
      failure = synchronize_error;
    }
  }
  const auto destroy = [this] {
    m_worker.reset();
    m_backends.destroy();
  };
  if (!m_failures.close(destroy)) return;
  if (const std::size_t live_blocks = m_heap.clear(); live_blocks > 0)
    log(log_level::warning,
        "rank {}: {} block(s) of the symmetric heap were not freed before the communicator was destroyed",
        m_ranks.rank, live_blocks);
  if (failure) throw error(*failure);
}

void* communicator::allocate_symmetric(std::uint64_t bytes) {
  check_alive();
  if (m_ranks.has_mixed_platforms)  // equal on all ranks
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        "memory_allocate_symmetric: the ranks use devices of several platforms, which cannot share memory",
        "allocate device memory on each rank with isthmus_memory_allocate_device");
  void* pointer = nullptr;
  exchange(recorder::setup_step::heap_allocate, bytes,
           [&] { pointer = m_heap.allocate(*m_control, m_ranks, bytes); });
  isthmus_heap_block block;
  if (m_heap.find(pointer, 1, &block, nullptr)) m_backends.register_block(block);
  return pointer;
}

void communicator::free_symmetric(void* pointer) {
  isthmus_heap_block block;
  std::uint64_t offset = 0;
  if (m_heap.find(pointer, 1, &block, &offset) && offset == 0) m_backends.unregister_block(block);
  m_heap.free(pointer);
}

const char* communicator::option(const std::string& key) const {
  for (const auto& [name, value] : m_setup.rules->options)
    if (name == key) return value.c_str();
  return nullptr;
}

}  // namespace isthmus
