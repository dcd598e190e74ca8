// How a failure becomes known to a communicator: its own, those of others, ranks that are lost.
#include <algorithm>
#include <chrono>
#include <limits>

#include "core/communicator.hpp"
#include "core/siblings.hpp"

namespace isthmus {
namespace {

using std::chrono::steady_clock;

// How long a wait lasts before it looks for another process' failure, and the time between looks.
constexpr steady_clock::duration listening_interval = std::chrono::milliseconds(100);
// A look that is slow, as the store's process is stopped, may take this part of the time.
constexpr int listening_share = 20;
}  // namespace

void communicator::poison_here(const isthmus_error_info& failure, audience told) noexcept {
  {
    const std::lock_guard lock(m_failure_mutex);
    if (m_failure) return;
    m_failure = failure;
    m_recorder.fail(failure.message);
  }
  // Before the backends release anybody: who is released finds the cause.
  if (told == audience::all_ranks && m_ranks.process_size < m_ranks.size) m_control->announce(failure);
  m_poisoned.store(true, std::memory_order_release);
  m_control->cancel();
  const std::lock_guard lock(m_abort_mutex);
  if (m_closed) return;
  for (const auto& backend : m_backends) backend->abort();
}

void communicator::poison(const isthmus_error_info& failure, audience told) noexcept {
  poison_here(failure, told);
  for (const auto& sibling : siblings_of(m_ranks.token, this))
    sibling->poison_here(failure, audience::this_process);
}

// On one node causes are read from memory, and who sees that a process has ended needs nobody's word. From
// other nodes they come by the store. A part's is looked for by the whole.
double communicator::cause_wait_s() const noexcept {
  constexpr double from_memory = 0.05, from_a_store = 2;
  const bool is_known_here = m_ranks.nodes == 1 || !m_whole.expired() || m_notices.find_lost();
  return is_known_here ? from_memory : std::min(from_a_store, timeout_s());
}

// Where nobody has announced a cause, what followed from it is the first that is known: that a rank ended, say.
void communicator::poison_by_backend(const isthmus_error_info& failure) noexcept {
  if (is_consequence(failure.status)) hear(cause_wait_s());
  poison(failure);
}

// Takes over what a rank of another process has announced.
void communicator::hear(double wait_s,
                        void (*tell)(const communicator& rank, const isthmus_error_info& cause)) noexcept {
  if (poisoned() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->announced(wait_s)) {
    if (tell != nullptr) tell(*this, *cause);
    return poison(*cause, audience::this_process);
  }
  // What waits on a device sees no process. On the host whoever waits knows best whether it needs that rank.
  if (m_ranks.device.platform != ISTHMUS_PLATFORM_HOST)
    if (const auto lost = m_notices.find_lost()) poison_as_lost(*lost);
}

void communicator::poison_as_lost(int lost) noexcept {
  isthmus_error_info failure =
      with_missing(make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                              fmt::format("rank {} ended before it had destroyed the communicator of rank {}",
                                          lost, m_ranks.rank),
                              "look for a crash or an early exit of that rank")
                       .info());
  failure.rank = m_ranks.rank;
  poison(failure);
}

void communicator::heed_notices() noexcept {
  if (const auto whole = m_whole.lock(); whole && !whole->m_closed) whole->heed_notices();
  if (poisoned() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->noticed()) poison(*cause, audience::this_process);
}

void communicator::listen() noexcept {
  // Who waits in a part waits for all: its ranks may have heard of a failure that those of the part can't.
  if (const auto whole = m_whole.lock(); whole && !whole->m_closed) whole->listen();
  if (poisoned() || m_ranks.process_size == m_ranks.size) return;
  const auto begin = steady_clock::now();
  const std::uint64_t operation = m_recorder.written();
  std::int64_t due = m_next_listening.load(std::memory_order_relaxed);
  if (m_waiting_operation.exchange(operation, std::memory_order_relaxed) != operation) {
    m_next_listening.store((begin + listening_interval).time_since_epoch().count(), std::memory_order_relaxed);
    return;
  }
  // One of several waiting threads looks.
  if (begin.time_since_epoch().count() < due ||
      !m_next_listening.compare_exchange_strong(due, std::numeric_limits<std::int64_t>::max()))
    return;
  hear(0);
  const auto end = steady_clock::now();
  const auto pause = std::max(listening_interval, (end - begin) * listening_share);
  m_next_listening.store((end + pause).time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace isthmus
