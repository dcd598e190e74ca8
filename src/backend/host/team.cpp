#include "backend/host/team.hpp"

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
#include <system_error>

#include "runtime/error.hpp"

namespace isthmus::host {
namespace {

// The poison word: kind in the upper half, rank in the lower.
constexpr std::uint64_t poison_failed = std::uint64_t{1} << 32;
constexpr std::uint64_t poison_aborted = std::uint64_t{2} << 32;

using namespace std::chrono_literals;
constexpr auto check_interval = 50ms;  // how often a long wait looks whether its peers live
constexpr auto yield_time = 5ms;       // how long a wait only yields before it sleeps between looks
constexpr timespec nap{0, 50'000};

}  // namespace

team::team(const isthmus_backend_context& context, gathering gathered)
    : m_context(context),
      m_sizes(gathered.sizes),
      m_tuned(gathered.tuned),
      m_layout(gathered.sizes, static_cast<std::uint64_t>(context.size)),
      m_depth_bits(std::countr_zero(gathered.sizes.depth)),
      m_kernel_copies(gathered.kernel_copies),
      m_segments(std::move(gathered.segments)),
      m_done(m_segments.size(), 0) {
  for (int r = 0; r < size(); ++r) {
    const auto& shared = m_segments[static_cast<std::size_t>(r)];
    m_bases.push_back(shared->data());
    // A descriptor of the process, unlike its number, never means a later process. -1 on old kernels too.
    m_process_descriptors.push_back(
        same_process(r) ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, shared->address().pid, 0)));
  }
}

team::~team() {
  header(rank()).departed.store(1, std::memory_order_release);
  for (const int descriptor : m_process_descriptors)
    if (descriptor >= 0) ::close(descriptor);
}

void team::reserve(std::uint64_t ticket) {
  if (ticket < m_sizes.depth) return;
  const std::uint64_t needed = ticket - m_sizes.depth + 1;
  for (int r = 0; r < size(); ++r)
    if (m_done[static_cast<std::size_t>(r)] < needed && r != rank()) wait_until_done(r, needed);
}

void team::wait_until_done(int peer, std::uint64_t tickets) {
  std::uint64_t& done = m_done[static_cast<std::size_t>(peer)];
  waiter wait(*this);
  while ((done = header(peer).done.load(std::memory_order_acquire)) < tickets) wait.pause(peer);
}

void team::wait_until_all_complete(std::uint64_t ticket) {
  for (int i = 1; i < size(); ++i) wait_until_done((rank() + i) % size(), ticket + 1);
}

// The kernel does not copy what a driver has mapped, memory that is pinned for a device, say. Its first byte is
// tried on this process itself, which takes about a microsecond.
bool team::is_ordinary(const std::byte* address) {
  std::byte seen;
  const iovec here{&seen, 1}, there{const_cast<std::byte*>(address), 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1;
}

void team::read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const {
  if (same_process(peer))
    std::memcpy(to, address, bytes);
  else
    copy_through_kernel(peer, ::process_vm_readv, to, const_cast<std::byte*>(address), bytes);
}

void team::write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const {
  if (same_process(peer))
    std::memcpy(address, from, bytes);
  else
    copy_through_kernel(peer, ::process_vm_writev, const_cast<std::byte*>(from), address, bytes);
}

// In pieces, so that poison is noticed in the middle of a long message.
void team::copy_through_kernel(int peer, kernel_copy* copy, std::byte* own, std::byte* theirs,
                               std::uint64_t bytes) const {
  constexpr std::uint64_t piece = 4 << 20;
  const auto process = static_cast<pid_t>(m_segments[static_cast<std::size_t>(peer)]->address().pid);
  for (std::uint64_t moved = 0; moved < bytes;) {
    const std::uint64_t wanted = std::min(piece, bytes - moved);
    const iovec here{own + moved, wanted}, there{theirs + moved, wanted};
    const ssize_t got = copy(process, &here, 1, &there, 1, 0);
    if (got <= 0) {
      check_poison();
      const int code = got < 0 ? errno : EFAULT;
      throw failure{m_context.fail(
          m_context.runtime, code == ESRCH ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_SYSTEM, code, ISTHMUS_HERE,
          "do the buffers of that rank and of this one have as many bytes as their calls said?",
          "copying %llu bytes %s a buffer of rank %d failed: %s", static_cast<unsigned long long>(bytes),
          copy == ::process_vm_readv ? "out of" : "into", peer, std::generic_category().message(code).c_str())};
    }
    moved += static_cast<std::uint64_t>(got);
  }
}

void team::check_poison() const {
  const std::uint64_t word = header(rank()).poison.load(std::memory_order_acquire);
  if (word != 0) {
    const int culprit = static_cast<int>(word & 0xffffffffu);
    if ((word & poison_failed) != 0)
      throw failure{m_context.fail(
          m_context.runtime, ISTHMUS_ERROR_REMOTE, 0, ISTHMUS_HERE, "see the first error of that rank",
          "rank %d failed or vanished; rank %d gave up in %s", culprit, rank(), m_activity)};
    throw failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                 "rank %d aborted the communicator; rank %d gave up in %s", culprit, rank(),
                                 m_activity)};
  }
  if (m_context.aborted(m_context.runtime) != 0)
    throw failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                 "the communicator was aborted; rank %d gave up in %s", rank(), m_activity)};
}

void team::poison_as_failed(int culprit) noexcept {
  poison(poison_failed | static_cast<std::uint64_t>(culprit));
}
void team::poison_as_aborted() noexcept { poison(poison_aborted | static_cast<std::uint64_t>(rank())); }

void team::poison(std::uint64_t word) noexcept {
  for (int r = 0; r < size(); ++r) {
    std::uint64_t healthy = 0;  // the first story told is the one that explains
    header(r).poison.compare_exchange_strong(healthy, word, std::memory_order_acq_rel);
  }
}

bool team::has_gone(int peer) const {
  if (header(peer).departed.load(std::memory_order_acquire) != 0) return true;
  if (same_process(peer)) return false;
  const auto index = static_cast<std::size_t>(peer);
  if (m_process_descriptors[index] >= 0) {
    pollfd watched{m_process_descriptors[index], POLLIN, 0};
    return ::poll(&watched, 1, 0) > 0;
  }
  return ::kill(static_cast<pid_t>(m_segments[index]->address().pid), 0) != 0 && errno == ESRCH;
}

void waiter::pause_long(std::span<const int> peers) {
  m_team.check_poison();
  const auto now = clock::now();
  if (!m_is_long) {
    m_is_long = true;
    m_begin = now;
    m_next_check = now + check_interval;
  }
  if (now >= m_next_check) {
    m_next_check = now + check_interval;
    check_peers(peers);
  }
  if (std::chrono::duration<double>(now - m_begin).count() > m_team.m_context.timeout_s) time_out(peers);
  if (now - m_begin < yield_time)
    ::sched_yield();
  else
    ::nanosleep(&nap, nullptr);
}

void waiter::check_peers(std::span<const int> peers) {
  for (const int peer : peers) {
    if (!m_team.has_gone(peer)) continue;
    if (m_suspect != peer) {
      m_suspect = peer;  // it may have done its part just before it left: the caller looks once more
      m_next_check = clock::now();
      return;
    }
    m_team.poison_as_failed(peer);
    throw failure{
        m_team.m_context.fail(m_team.m_context.runtime, ISTHMUS_ERROR_REMOTE, 0, ISTHMUS_HERE,
                              "look for a crash or an early exit of that rank",
                              "rank %d ended, or destroyed its communicator, while rank %d waited for it in %s",
                              peer, m_team.rank(), m_team.m_activity)};
  }
}

void waiter::time_out(std::span<const int> peers) {
  const int peer = peers.front();
  m_team.poison_as_failed(m_team.rank());
  throw failure{m_team.m_context.fail(
      m_team.m_context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
      "that rank is stuck, much slower, or makes other calls; raise timeout_s if it only needs longer",
      "rank %d waited more than %g s for rank %d in %s", m_team.rank(), m_team.m_context.timeout_s, peer,
      m_team.m_activity)};
}

}  // namespace isthmus::host
