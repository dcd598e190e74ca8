#include "backends/host/team.hpp"

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
#include <ctime>
#include <isthmus/plugin.hpp>
#include <system_error>

#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// The poison word: kind in the upper half, rank in the lower.
constexpr std::uint64_t word_failed = std::uint64_t{1} << 32;
constexpr std::uint64_t word_aborted = std::uint64_t{2} << 32;
constexpr std::uint64_t word_unresponsive = std::uint64_t{4} << 32;

using namespace std::chrono_literals;
constexpr auto check_interval = 50ms;  // how often a long wait looks whether its peers live
constexpr auto yield_time = 5ms;       // how long a wait only yields before it sleeps between looks
constexpr timespec nap{0, 50'000};

}  // namespace

node_group::node_group(const isthmus_backend_context& context, connection connected)
    : m_context(context),
      m_sizes(connected.sizes),
      m_tuned(connected.tuned),
      m_layout(connected.sizes, static_cast<std::uint64_t>(context.size)),
      m_depth_bits(std::countr_zero(connected.sizes.depth)),
      m_kernel_copies(connected.kernel_copies),
      m_segments(std::move(connected.segments)),
      m_gate(std::move(connected.own_gate)),
      m_gates(std::move(connected.gates)),
      m_done(m_segments.size(), 0) {
  for (int r = 0; r < size(); ++r) {
    const auto& shared = m_segments[static_cast<std::size_t>(r)];
    m_bases.push_back(shared->data());
    // A descriptor of the process, unlike its number, never means a later process. -1 on old kernels too.
    m_process_descriptors.emplace_back(
        same_process(r) ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, shared->address().pid, 0)));
  }
}

node_group::~node_group() { header(rank()).departed.store(1, std::memory_order_release); }

void node_group::wait_until_done(int peer, std::uint64_t sequence_numbers) {
  std::uint64_t& done = m_done[static_cast<std::size_t>(peer)];
  waiter wait(*this);
  while ((done = header(peer).done.load(std::memory_order_acquire)) < sequence_numbers) wait.pause(peer);
}

void node_group::wait_until_all_complete(std::uint64_t sequence) {
  for (int i = 1; i < size(); ++i) wait_until_done((rank() + i) % size(), sequence + 1);
}

// The kernel does not copy what a driver has mapped, memory that is pinned for a device, say. Its first byte is
// tried on this process itself, which takes about a microsecond.
bool node_group::is_ordinary(const std::byte* address) {
  std::byte seen;
  const iovec here{&seen, 1}, there{const_cast<std::byte*>(address), 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1;
}

void node_group::read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const {
  if (same_process(peer))
    std::memcpy(to, address, bytes);
  else
    copy_through_kernel(peer, ::process_vm_readv, to, const_cast<std::byte*>(address), bytes);
}

void node_group::write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const {
  if (same_process(peer))
    std::memcpy(address, from, bytes);
  else
    copy_through_kernel(peer, ::process_vm_writev, const_cast<std::byte*>(from), address, bytes);
}

// In pieces, so that poison is noticed in the middle of a long message. A copy into the peer begins with its
// gate (fence.hpp).
void node_group::copy_through_kernel(int peer, kernel_copy* copy, std::byte* own, std::byte* theirs,
                               std::uint64_t bytes) const {
  constexpr std::uint64_t max_chunk_bytes = 4 << 20;
  const auto process = static_cast<pid_t>(m_segments[static_cast<std::size_t>(peer)]->address().pid);
  const bool writes = copy == ::process_vm_writev;
  const int first = writes ? 0 : 1;
  const ssize_t overhead = writes ? 1 : 0;
  std::byte key{};
  for (std::uint64_t moved = 0; moved < bytes;) {
    poll_abort();
    const std::uint64_t wanted = std::min(max_chunk_bytes, bytes - moved);
    const iovec here[] = {{&key, 1}, {own + moved, wanted}};
    const iovec there[] = {{m_gates[static_cast<std::size_t>(peer)], 1}, {theirs + moved, wanted}};
    const auto n = static_cast<unsigned long>(2 - first);
    const ssize_t got = copy(process, here + first, n, there + first, n, 0);
    if (got <= overhead) fail_copy(peer, writes ? "into" : "out of", bytes, got < 0 ? errno : EFAULT);
    moved += static_cast<std::uint64_t>(got - overhead);
  }
}

// Poison explains it, or the end of the peer, which loses its memory a moment before it is seen to have ended.
void node_group::fail_copy(int peer, const char* direction, std::uint64_t bytes, int code) const {
  constexpr int looks = 1000;
  for (int i = 0; i < looks && !has_gone(peer); ++i) {
    check_abort();
    ::nanosleep(&nap, nullptr);
  }
  const bool gone = has_gone(peer);
  if (gone) publish_failed_rank(peer);
  throw operation_failure{
      fail_with_ranks(m_context, gone ? std::vector{peer} : std::vector<int>(),
              gone ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_SYSTEM, code, ISTHMUS_HERE,
              gone ? "look for a crash or an early exit of that rank"
                   : "do the buffers of that rank and of this one have as many bytes as their calls said?",
              fmt::format("copying {} bytes {} a buffer of rank {} failed{}: {}", bytes, direction, peer,
                          gone ? ", because that rank exited" : "", std::generic_category().message(code)))};
}

void node_group::fail_with_rank(int failed_rank, isthmus_status status, const char* location, const char* hint,
                           const std::string& text) const {
  throw operation_failure{fail_with_ranks(m_context, {failed_rank}, status, 0, location, hint, text)};
}

void node_group::check_abort() const {
  const std::uint64_t word = header(rank()).abort_word.load(std::memory_order_acquire);
  if (word != 0) {
    const int failed_rank = static_cast<int>(word & 0xffffffffu);
    if ((word & word_unresponsive) != 0)
      fail_with_rank(
          failed_rank, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
          "that rank is stuck, much slower, or makes other calls; raise timeout_s if it only needs longer",
          fmt::format("the ranks waited for rank {} past the timeout of {} s; rank {} gave up in {}", failed_rank,
                      m_context.timeout_s, rank(), m_activity));
    if ((word & word_failed) != 0)
      fail_with_rank(
          failed_rank, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "see the first error of that rank",
          fmt::format("rank {} failed or vanished; rank {} gave up in {}", failed_rank, rank(), m_activity));
    throw operation_failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                 "rank %d aborted the communicator; rank %d gave up in %s", failed_rank, rank(),
                                 m_activity)};
  }
  if (m_context.is_aborted(m_context.runtime) != 0)
    throw operation_failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                 "the communicator was aborted; rank %d gave up in %s", rank(), m_activity)};
}

void node_group::publish_failed_rank(int failed_rank) const noexcept {
  publish_abort_word(word_failed | static_cast<std::uint64_t>(failed_rank));
}
void node_group::publish_unresponsive_rank(int failed_rank) const noexcept {
  publish_abort_word(word_unresponsive | static_cast<std::uint64_t>(failed_rank));
}
void node_group::publish_abort() const noexcept { publish_abort_word(word_aborted | static_cast<std::uint64_t>(rank())); }

void node_group::publish_abort_word(std::uint64_t word) const noexcept {
  for (int r = 0; r < size(); ++r) {
    std::uint64_t healthy = 0;  // the first story told is the one that explains
    header(r).abort_word.compare_exchange_strong(healthy, word, std::memory_order_seq_cst);
  }
}

void node_group::fence() noexcept {
  if (m_exposed.empty()) return;
  m_gate->close();
  bool is_late = false, is_shut_out = true;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const writer left = wait_for_writer(r);
    is_late |= left != writer::done && !same_process(r);
    is_shut_out &= left != writer::unknown;
  }
  for (const exposure& each : m_exposed)
    if (is_late && each.is_mapped) is_shut_out &= make_private(each);
  m_exposed.clear();
  if (!is_shut_out)
    m_context.log(
        m_context.runtime, 2,
        "rank %d could not shut out a late rank in %s: its buffers may still be written until that rank "
        "notices the failure",
        rank(), m_activity);
}

// Done: the peer writes into nobody's memory. Stopped: it can only write into what it has mapped.
node_group::writer node_group::wait_for_writer(int peer) const noexcept {
  constexpr auto patience = 2s;  // a piece takes milliseconds, on a crowded machine longer
  const flag& writes = header(peer).writes;
  const auto limit = same_process(peer) ? std::max<std::chrono::duration<double>>(
                                              patience, std::chrono::duration<double>(m_context.timeout_s))
                                        : std::chrono::duration<double>(patience);
  const auto begin = std::chrono::steady_clock::now();
  while (writes.load(std::memory_order_seq_cst) != 0) {
    if (has_gone(peer)) return writer::done;
    if (look_at(peer) == process_state::stopped) return writer::stopped;
    if (std::chrono::steady_clock::now() - begin > limit) return writer::unknown;
    ::nanosleep(&nap, nullptr);
  }
  return writer::done;
}

process_state node_group::look_at(int peer) const {
  if (same_process(peer)) return process_state::alive;
  return read_process_state(m_segments[static_cast<std::size_t>(peer)]->address().pid);
}

// Ranks that wait say for whom, so the chain of them ends at the one that does not.
node_group::suspect node_group::find_missing(std::span<const int> awaited) const {
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const process_state state = look_at(r);
    if (state == process_state::stopped) return {r, "its process is stopped"};
    if (state == process_state::exited) return {r, "its process has exited"};
  }
  for (const int first : awaited) {
    int at = first;
    for (int steps = 0; steps < size() && at != rank(); ++steps) {
      const std::uint64_t next = header(at).awaits.load(std::memory_order_relaxed);
      if (next == 0)
        return {at, header(at).entered.load(std::memory_order_relaxed) < m_sequence
                        ? "it has not come to this call"
                        : "it waits for nobody: it is slow, or in no call"};
      at = static_cast<int>(next - 1);
    }
  }
  return {awaited.front(), "it waits for others, too: the ranks make different calls"};
}

bool node_group::has_gone(int peer) const {
  if (header(peer).departed.load(std::memory_order_acquire) != 0) return true;
  if (same_process(peer)) return false;
  const auto index = static_cast<std::size_t>(peer);
  if (m_process_descriptors[index].get() >= 0) {
    pollfd watched{m_process_descriptors[index].get(), POLLIN, 0};
    return ::poll(&watched, 1, 0) > 0;
  }
  return ::kill(static_cast<pid_t>(m_segments[index]->address().pid), 0) != 0 && errno == ESRCH;
}

// Where other work keeps the machine busy the scheduler may put two ranks on one core: one that spins there
// keeps away the one that it waits for.
bool waiter::shares_core(std::span<const int> peers) const {
  const int core = ::sched_getcpu();
  const std::uint64_t own = core < 0 ? 0 : static_cast<std::uint64_t>(core) + 1;
  m_group.header(m_group.rank()).core.store(own, std::memory_order_relaxed);
  return own != 0 && std::any_of(peers.begin(), peers.end(), [&](int peer) {
           return m_group.header(peer).core.load(std::memory_order_relaxed) == own;
         });
}

void waiter::look_around(std::span<const int> peers) {
  m_group.make_progress();
  if (m_rounds == spins_before_core && shares_core(peers)) m_rounds = m_group.m_tuned.spins;
}

void waiter::pause_long(std::span<const int> peers) {
  m_group.check_abort();
  const auto now = clock::now();
  if (!m_is_long) {
    m_is_long = true;
    tell_awaited(static_cast<std::uint64_t>(peers.front()) + 1);
    m_begin = now;
    m_next_check = now + check_interval;
  }
  if (now >= m_next_check) {
    m_next_check = now + check_interval;
    check_peers(peers);
  }
  if (std::chrono::duration<double>(now - m_begin).count() > m_group.m_context.timeout_s) time_out(peers);
  if (m_group.make_progress() || now - m_begin < yield_time)
    ::sched_yield();
  else
    ::nanosleep(&nap, nullptr);
}

void waiter::check_peers(std::span<const int> peers) {
  for (const int peer : peers) {
    if (!m_group.has_gone(peer)) continue;
    if (m_suspect != peer) {
      m_suspect = peer;  // it may have done its part just before it left: the caller looks once more
      m_next_check = clock::now();
      return;
    }
    m_group.publish_failed_rank(peer);
    m_group.fail_with_rank(
        peer, ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "look for a crash or an early exit of that rank",
        fmt::format("rank {} exited, or destroyed its communicator, while rank {} waited for it in {}", peer,
                    m_group.rank(), m_group.m_activity));
  }
}

void waiter::time_out(std::span<const int> peers) {
  const node_group::suspect missing = m_group.find_missing(peers);
  m_group.publish_unresponsive_rank(missing.rank);
  m_group.fail_with_rank(
      missing.rank, ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
      "look at that rank: stuck, much slower, or in another call (on another backend, where the ranks' sizes "
      "or memory differ); raise timeout_s if it only needs longer",
      fmt::format("rank {} waited more than {} s for rank {} in {}; {}", m_group.rank(),
                  m_group.m_context.timeout_s, missing.rank, m_group.m_activity, missing.state));
}

}  // namespace isthmus::shm
