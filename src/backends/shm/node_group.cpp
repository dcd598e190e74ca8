#include "backends/shm/node_group.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <system_error>

#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// The abort word holds the kind of failure in its upper half and a rank in its lower half: the failed one, or the
// one that timed out or aborted.
constexpr std::uint64_t word_failed = std::uint64_t{1} << 32;
constexpr std::uint64_t word_aborted = std::uint64_t{2} << 32;
constexpr std::uint64_t word_timed_out = std::uint64_t{4} << 32;

using namespace std::chrono_literals;
constexpr auto check_interval = 50ms;  // interval at which a long wait checks that its peers are alive

}  // namespace

node_group::node_group(const isthmus_backend_context& context, segment_connection connected)
    : m_context(context),
      m_sizes(connected.sizes),
      m_parameters(connected.parameters),
      m_layout(connected.sizes, static_cast<std::uint64_t>(context.size)),
      m_depth_bits(std::countr_zero(connected.sizes.depth)),
      m_can_kernel_copy(connected.can_kernel_copy),
      m_segments(std::move(connected.segments)),
      m_gate(std::move(connected.own_gate)),
      m_gate_addresses(std::move(connected.gate_addresses)),
      m_completed_sequences(m_segments.size(), 0) {
  for (int r = 0; r < size(); ++r) {
    const auto& segment = m_segments[static_cast<std::size_t>(r)];
    m_bases.push_back(segment->data());
    // Unlike a pid, a descriptor never refers to a later process. It is -1 on old kernels.
    m_process_descriptors.emplace_back(
        is_same_process(r) ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, segment->address().pid, 0)));
  }
}

node_group::~node_group() { header(rank()).has_departed.store(1, std::memory_order_release); }

void node_group::wait_until_completed(int peer, std::uint64_t sequence_numbers) {
  std::uint64_t& completed = m_completed_sequences[static_cast<std::size_t>(peer)];
  waiter wait(*this);
  while ((completed = header(peer).completed_sequence.load(std::memory_order_acquire)) < sequence_numbers)
    wait.pause(peer);
}

void node_group::wait_until_all_complete(std::uint64_t sequence) {
  for (int i = 1; i < size(); ++i) wait_until_completed((rank() + i) % size(), sequence + 1);
}

// The kernel cannot copy memory that a driver has mapped, for example memory pinned for a device. The test
// copies the first byte within this process, which takes about a microsecond.
bool node_group::is_ordinary(const std::byte* address) {
  std::byte probe;
  const iovec local_iovec{&probe, 1}, remote_iovec{const_cast<std::byte*>(address), 1};
  return ::process_vm_readv(::getpid(), &local_iovec, 1, &remote_iovec, 1, 0) == 1;
}

void node_group::read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const {
  if (is_same_process(peer))
    std::memcpy(to, address, bytes);
  else
    copy_through_kernel(peer, ::process_vm_readv, to, const_cast<std::byte*>(address), bytes);
}

void node_group::write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const {
  if (is_same_process(peer))
    std::memcpy(address, from, bytes);
  else
    copy_through_kernel(peer, ::process_vm_writev, const_cast<std::byte*>(from), address, bytes);
}

// Copies in chunks, so that an abort is detected during a long message. A copy into a peer's memory first
// writes to the peer's write gate (write_gate.hpp).
void node_group::copy_through_kernel(int peer, kernel_copy_function* copy, std::byte* local, std::byte* remote,
                                     std::uint64_t bytes) const {
  constexpr std::uint64_t max_chunk_bytes = 4 << 20;
  const auto process = static_cast<pid_t>(m_segments[static_cast<std::size_t>(peer)]->address().pid);
  const bool is_write = copy == ::process_vm_writev;
  const int first = is_write ? 0 : 1;
  const ssize_t key_bytes = is_write ? 1 : 0;
  std::byte key{};
  for (std::uint64_t copied_bytes = 0; copied_bytes < bytes;) {
    poll_abort();
    const std::uint64_t chunk_bytes = std::min(max_chunk_bytes, bytes - copied_bytes);
    const iovec local_iovec[] = {{&key, 1}, {local + copied_bytes, chunk_bytes}};
    const iovec remote_iovec[] = {{m_gate_addresses[static_cast<std::size_t>(peer)], 1},
                                  {remote + copied_bytes, chunk_bytes}};
    const auto n = static_cast<unsigned long>(2 - first);
    const ssize_t result = copy(process, local_iovec + first, n, remote_iovec + first, n, 0);
    if (result <= key_bytes) fail_copy(peer, is_write ? "into" : "out of", bytes, result < 0 ? errno : EFAULT);
    copied_bytes += static_cast<std::uint64_t>(result - key_bytes);
  }
}

// The peer has aborted or exited. A process loses its memory slightly before its exit becomes visible.
void node_group::fail_copy(int peer, const char* direction, std::uint64_t bytes, int code) const {
  const auto is_exit_visible = [&] {
    if (has_exited(peer)) return true;
    check_abort();
    return false;
  };
  const bool has_ended = poll_until(is_exit_visible, deadline_after(100ms), 50us);
  if (has_ended) publish_failed_rank(peer);
  throw operation_failure{fail_with_ranks(
      m_context, has_ended ? std::vector{peer} : std::vector<int>(),
      has_ended ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_SYSTEM, code, ISTHMUS_HERE,
      has_ended ? "look for a crash or an early exit of that rank"
                : "check that the buffers of both ranks are as long as their calls say",
      fmt::format("copying {} bytes {} a buffer of rank {} failed{}: {}", bytes, direction, peer,
                  has_ended ? ", because that rank exited" : "", std::generic_category().message(code)))};
}

void node_group::fail_with_rank(int failed_rank, isthmus_status status, const char* location, const char* hint,
                                const std::string& text) const {
  throw operation_failure{fail_with_ranks(m_context, {failed_rank}, status, 0, location, hint, text)};
}

void node_group::check_abort() const {
  const std::uint64_t word = header(rank()).abort_word.load(std::memory_order_acquire);
  if (word != 0) {
    const int failed_rank = static_cast<int>(word & 0xffffffffu);
    if ((word & word_timed_out) != 0)
      throw operation_failure{
          m_context.fail(m_context.runtime, ISTHMUS_ERROR_REMOTE, 0, ISTHMUS_HERE, "see the error of that rank",
                         "a wait of rank %d exceeded the timeout of %g s; rank %d aborted %s", failed_rank,
                         m_context.timeout_s, rank(), m_activity)};
    if ((word & word_failed) != 0)
      fail_with_rank(
          failed_rank, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "see the first error of that rank",
          fmt::format("rank {} failed or exited; rank {} aborted {}", failed_rank, rank(), m_activity));
    throw operation_failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                           "rank %d aborted the communicator; rank %d aborted %s", failed_rank,
                                           rank(), m_activity)};
  }
  if (m_context.is_aborted(m_context.runtime) != 0)
    throw operation_failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
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

void node_group::publish_abort_word(std::uint64_t word) const noexcept {
  for (int r = 0; r < size(); ++r) {
    std::uint64_t expected = 0;  // only the first failure is the root cause
    header(r).abort_word.compare_exchange_strong(expected, word, std::memory_order_seq_cst);
  }
}

void node_group::revoke_write_access() noexcept {
  if (m_exposed_ranges.empty()) return;
  m_gate->close();
  bool is_peer_late = false, is_protected = true;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const writer_state state = wait_for_writer(r);
    is_peer_late |= state != writer_state::finished && !is_same_process(r);
    is_protected &= state != writer_state::unknown;
  }
  for (const exposed_range& each : m_exposed_ranges)
    if (is_peer_late && each.is_mapped) is_protected &= make_private(each);
  m_exposed_ranges.clear();
  if (!is_protected)
    m_context.log(
        m_context.runtime, 2,
        "rank %d could not block writes of a late rank after %s failed: that rank may still write into its "
        "buffers until it detects the failure",
        rank(), m_activity);
}

// finished: the peer does not write to other ranks. stopped: it can write only to memory that it has mapped.
node_group::writer_state node_group::wait_for_writer(int peer) const noexcept {
  constexpr auto grace_period = 2s;  // a chunk takes milliseconds, longer on an oversubscribed machine
  const flag& write_flag = header(peer).write_flag;
  const auto limit = is_same_process(peer)
                         ? std::max<std::chrono::duration<double>>(
                               grace_period, std::chrono::duration<double>(m_context.timeout_s))
                         : std::chrono::duration<double>(grace_period);
  auto state = writer_state::unknown;
  const auto is_known = [&] {
    if (write_flag.load(std::memory_order_seq_cst) == 0 || has_exited(peer))
      state = writer_state::finished;
    else if (!is_same_process(peer) &&
             read_process_state(m_segments[static_cast<std::size_t>(peer)]->address().pid) ==
                 process_state::stopped)
      state = writer_state::stopped;
    return state != writer_state::unknown;
  };
  poll_until(is_known, deadline_after(limit), 50us);
  return state;
}

bool node_group::has_exited(int peer) const {
  if (header(peer).has_departed.load(std::memory_order_acquire) != 0) return true;
  if (is_same_process(peer)) return false;
  const auto index = static_cast<std::size_t>(peer);
  if (m_process_descriptors[index].get() >= 0) {
    pollfd poll_entry{m_process_descriptors[index].get(), POLLIN, 0};
    return ::poll(&poll_entry, 1, 0) > 0;
  }
  return ::kill(static_cast<pid_t>(m_segments[index]->address().pid), 0) != 0 && errno == ESRCH;
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
  m_group.make_progress();
  if (m_backoff.rounds() == spins_before_core_check && shares_core(peers)) m_backoff.stop_spinning();
}

void waiter::pause_long(std::span<const int> peers) {
  m_group.check_abort();
  if (!m_backoff.is_long()) {
    publish_awaited(peers.front());
    m_next_check = check_interval;
  }
  const wait_clock::duration waited = m_backoff.measure();
  if (waited >= m_next_check) {
    m_next_check = waited + check_interval;
    check_peers(peers);
  }
  if (std::chrono::duration<double>(waited).count() > m_group.m_context.timeout_s) fail_with_timeout(peers);
  m_backoff.pause(m_group.make_progress());
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
                    m_group.rank(), m_group.m_activity));
  }
}

// The runtime finds out whether the awaited rank itself waits for another one.
void waiter::fail_with_timeout(std::span<const int> peers) {
  m_group.publish_timeout();
  m_group.fail_with_rank(
      peers.front(), ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
      "check whether that rank hangs, is slow or is in another call (the backend may differ if the ranks' "
      "sizes "
      "or memory differ); raise timeout_s if it needs more time",
      fmt::format("rank {} waited more than {} s for rank {} in {}", m_group.rank(),
                  m_group.m_context.timeout_s, peers.front(), m_group.m_activity));
}

}  // namespace isthmus::shm
