#include "backends/shm/node_group.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <isthmus/plugin.hpp>

#include "base/error.hpp"
#include "base/process.hpp"
#include "base/tables.hpp"

namespace isthmus::shm {
namespace {

// The abort word holds the kind of failure in its upper half and a rank in its lower half: the failed one, or the
// one that timed out or aborted.
constexpr std::uint64_t word_failed = std::uint64_t{1} << 32;
constexpr std::uint64_t word_aborted = std::uint64_t{2} << 32;
constexpr std::uint64_t word_timed_out = std::uint64_t{4} << 32;

using namespace std::chrono_literals;
// Interval at which a long wait checks that its peers are alive. It is longer for many peers, because each takes a
// few system calls.
constexpr wait_clock::duration check_interval(std::size_t peers) {
  return 50ms * (1 + static_cast<int>(peers / 8));
}

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

}  // namespace

node_group::node_group(const isthmus_backend_context& context, segment_connection connected)
    : node_segments(context, connected),
      m_memory(*this, std::move(connected.own_gate), std::move(connected.gate_addresses),
               connected.can_kernel_copy),
      m_completed_sequences(connected.segments.size(), 0) {
  for (int r = 0; r < size(); ++r)
    m_process_starts.push_back(is_same_process(r) ? 0 : process_start_time(pid_of(r)));
}

// A forked child shares the segments, but not the communicator.
node_group::~node_group() {
  if (pid_of(rank()) == ::getpid()) header(rank()).has_departed.store(1, std::memory_order_release);
}

void node_group::wait_until_completed(int peer, std::uint64_t sequence_numbers) {
  std::uint64_t& completed = m_completed_sequences[static_cast<std::size_t>(peer)];
  waiter wait(*this);
  while ((completed = header(peer).completed_sequence.load(std::memory_order_acquire)) < sequence_numbers)
    wait.pause(peer);
}

// Data movement compares bytes, because MPI programs may describe the same data with different types.
void node_group::begin_call(const isthmus_operation& operation, int algorithm) {
  const collective_row& row = row_of(operation.collective);
  m_activity = row.name;
  const auto word = [](auto value) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(value)); };
  std::uint64_t unit = bytes_of(operation.datatype);
  std::uint64_t arguments = word(operation.collective) | word(algorithm + 1) << 8;
  if (row.is_reduction) {
    arguments |= word(operation.datatype) << 16 | word(operation.op) << 24;
    unit = 1;
  }
  if (row.peer == peer_kind::root) arguments |= word(operation.root) << 32;
  std::uint64_t hash = mix(0, arguments);
  if (has_equal_count(row)) hash = mix(hash, operation.count * unit);
  if (const std::uint64_t* const counts = shared_counts(operation))
    for (int r = 0; r < size(); ++r) hash = mix(hash, counts[r] * unit);
  m_call_signature = hash;
}

void node_group::wait_for_flag(int peer, const flag& ready, std::uint64_t sequence) {
  waiter wait(*this);
  std::uint64_t value = 0;
  while ((value = ready.load(std::memory_order_acquire)) >> signature_bits <= sequence) {
    wait.pause(peer);
    if (wait.is_long() && makes_different_call(peer, ready, sequence)) fail_with_mismatch(peer);
  }
  if (value != call_flag(sequence, m_call_signature)) fail_with_mismatch(peer);
}

// For calls that do not use the same flags. A peer that has allocated the same sequence numbers must have the same
// signature, and a peer that has completed the sequence number must have set the flag.
bool node_group::makes_different_call(int peer, const flag& ready, std::uint64_t sequence) const {
  const std::uint64_t own = header(rank()).current_call.load(std::memory_order_relaxed),
                      other = header(peer).current_call.load(std::memory_order_acquire);
  if (own >> signature_bits == other >> signature_bits) return own != other;
  return header(peer).completed_sequence.load(std::memory_order_acquire) > sequence &&
         ready.load(std::memory_order_acquire) >> signature_bits <= sequence;
}

void node_group::fail_with_mismatch(int peer) const {
  throw operation_failure{context().fail(context().runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                                         "issue the same calls in the same order on every rank, with the same "
                                         "collective, datatype, counts, operation "
                                         "and root; ISTHMUS_CHECK=1 names the calls of all ranks",
                                         "rank %d makes a different call than rank %d, which calls %s", peer,
                                         rank(), m_activity)};
}

void node_group::wait_until_all_complete(std::uint64_t sequence) {
  for (int i = 1; i < size(); ++i) wait_until_completed((rank() + i) % size(), sequence + 1);
}

void node_group::fail_with_rank(int failed_rank, isthmus_status status, const char* location, const char* hint,
                                const std::string& text) const {
  throw operation_failure{fail_with_ranks(context(), {failed_rank}, status, 0, location, hint, text)};
}

void node_group::check_abort() const {
  const std::uint64_t word = header(rank()).abort_word.load(std::memory_order_acquire);
  if (word != 0) {
    const int failed_rank = static_cast<int>(word & 0xffffffffu);
    if ((word & word_timed_out) != 0)
      throw operation_failure{
          context().fail(context().runtime, ISTHMUS_ERROR_REMOTE, 0, ISTHMUS_HERE, "see the error of that rank",
                         "a wait of rank %d exceeded the timeout of %g s; rank %d aborted %s", failed_rank,
                         context().timeout_s, rank(), m_activity)};
    if ((word & word_failed) != 0)
      fail_with_rank(
          failed_rank, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "see the first error of that rank",
          fmt::format("rank {} failed or exited; rank {} aborted {}", failed_rank, rank(), m_activity));
    throw operation_failure{context().fail(context().runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                           "rank %d aborted the communicator; rank %d aborted %s", failed_rank,
                                           rank(), m_activity)};
  }
  if (context().is_aborted(context().runtime) != 0)
    throw operation_failure{context().fail(context().runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                           "the communicator was aborted; rank %d aborted %s", rank(),
                                           m_activity)};
}

void node_group::publish_failed_rank(int failed_rank) const noexcept {
  publish_abort_word(word_failed | static_cast<std::uint64_t>(failed_rank));
}
void node_group::publish_timeout() const noexcept {
  publish_abort_word(word_timed_out | static_cast<std::uint64_t>(rank()));
}
void node_group::publish_abort() const noexcept {
  publish_abort_word(word_aborted | static_cast<std::uint64_t>(rank()));
}

// Only the first failure is the root cause. If a peer has published one to this rank, this rank passes that one on,
// because the peer may not have reached all ranks yet.
void node_group::publish_abort_word(std::uint64_t word) const noexcept {
  std::uint64_t first_word = 0;
  if (header(rank()).abort_word.compare_exchange_strong(first_word, word, std::memory_order_seq_cst))
    first_word = word;
  for (int r = 0; r < size(); ++r) {
    std::uint64_t expected = 0;
    header(r).abort_word.compare_exchange_strong(expected, first_word, std::memory_order_seq_cst);
  }
}

bool node_group::has_exited(int peer) const noexcept {
  return header(peer).has_departed.load(std::memory_order_acquire) != 0 ||
         (!is_same_process(peer) &&
          has_process_exited(pid_of(peer), m_process_starts[static_cast<std::size_t>(peer)]));
}

// On a busy machine the scheduler may place two ranks on one core. A rank that spins there blocks the rank that
// it waits for.
bool waiter::shares_core(std::span<const int> peers) const {
  const int core = ::sched_getcpu();
  const std::uint64_t own = core < 0 ? 0 : static_cast<std::uint64_t>(core) + 1;
  m_group.header(m_group.rank()).last_core.store(own, std::memory_order_relaxed);
  return own != 0 && std::any_of(peers.begin(), peers.end(), [&](int peer) {
           return m_group.header(peer).last_core.load(std::memory_order_relaxed) == own;
         });
}

void waiter::poll(std::span<const int> peers) {
  if (m_group.memory().serve_copy_requests()) return reset();
  m_group.make_progress();
  if (m_backoff.rounds() == spins_before_core_check && shares_core(peers)) m_backoff.stop_spinning();
}

void waiter::pause_long(std::span<const int> peers) {
  m_group.check_abort();
  if (m_group.memory().serve_copy_requests()) return reset();
  if (!m_backoff.is_long()) {
    publish_awaited(find_blocking_peer(peers));
    m_next_check = check_interval(peers.size());
  }
  const wait_clock::duration waited = m_backoff.measure();
  if (waited >= m_next_check) {
    m_next_check = waited + check_interval(peers.size());
    check_peers(peers);
    if (peers.size() > 1) publish_awaited(find_blocking_peer(peers));
  }
  if (std::chrono::duration<double>(waited).count() > m_group.context().timeout_s) fail_with_timeout(peers);
  m_backoff.pause(m_group.make_progress());
}

// A peer that waits itself is not the cause. If this rank named one, ranks that name each other would hide a peer that
// hangs or has not called.
int waiter::find_blocking_peer(std::span<const int> peers) const {
  const auto is_blocking = [this](int peer) {
    return m_group.header(peer).is_waiting.load(std::memory_order_relaxed) == 0;
  };
  const auto blocking_peer = std::ranges::find_if(peers, is_blocking);
  return blocking_peer == peers.end() ? peers.front() : *blocking_peer;
}

void waiter::publish_awaited(int peer) const {
  m_group.header(m_group.rank()).is_waiting.store(peer < 0 ? 0 : 1, std::memory_order_relaxed);
  m_group.context().set_awaited_rank(m_group.context().runtime, peer);
}

void waiter::check_peers(std::span<const int> peers) {
  for (const int peer : peers) {
    if (!m_group.has_exited(peer)) continue;
    if (m_exited_peer != peer) {
      m_exited_peer = peer;  // the peer may have finished its part before it exited, so the caller checks again
      m_next_check = {};
      return;
    }
    m_group.publish_failed_rank(peer);
    m_group.fail_with_rank(
        peer, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "look for a crash or an early exit of that rank",
        fmt::format("rank {} exited or destroyed its communicator while rank {} waited for it in {}", peer,
                    m_group.rank(), m_group.activity()));
  }
}

// The runtime finds out whether the awaited rank itself waits for another one.
void waiter::fail_with_timeout(std::span<const int> peers) {
  m_group.check_abort();  // this rank may have been stopped since the last check
  const int awaited_rank = find_blocking_peer(peers);
  publish_awaited(awaited_rank);
  m_group.publish_timeout();
  m_group.fail_with_rank(
      awaited_rank, ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
      "check whether that rank hangs, is slow or is in another call (the backend may differ if the ranks' "
      "sizes "
      "or memory differ); raise timeout_s if it needs more time",
      fmt::format("rank {} waited more than {} s for rank {} in {}", m_group.rank(),
                  m_group.context().timeout_s, awaited_rank, m_group.activity()));
}

}  // namespace isthmus::shm
