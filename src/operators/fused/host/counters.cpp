#include "operators/fused/host/counters.hpp"

#include <new>

#include "base/error.hpp"

namespace isthmus::fused {

host_counters::host_counters(communicator& owner, std::uint64_t stage_bytes)
    : m_owner(owner), m_lines(owner, sizeof(counter_line)) {
  new (m_lines.own()) counter_line{};
  // Collective: every line is initialized before any rank reads it.
  if (stage_bytes > 0) m_stage.emplace(owner, stage_bytes);
}

void host_counters::wait(int peer, const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                         const char* purpose) const {
  wait_until([&] { return counter.load(std::memory_order_acquire) >= value; }, peer, purpose);
}

void host_counters::wait_until_consumed(std::uint64_t run) const {
  for (int peer = 0; peer < m_owner.ranks().size; ++peer)
    if (peer != m_owner.ranks().rank) wait(peer, line(peer).consumed_runs, run, "to read this rank's rows");
}

void host_counters::fail() const noexcept {
  line(m_owner.ranks().rank).failed.store(1, std::memory_order_release);
}

void host_counters::bounded_wait::pause() {
  if (m_backoff.spin()) return;
  const double waited_s = std::chrono::duration<double>(m_backoff.measure()).count();
  m_backoff.pause();
  m_counters.m_owner.check_alive();
  if (m_counters.line(m_peer).failed.load(std::memory_order_acquire) != 0)
    throw make_error(
        ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
        fmt::format("fused_run: rank {} failed while this rank waited for it {}", m_peer, m_purpose),
        "see the error that rank reported");
  if (waited_s > m_counters.m_owner.timeout_s())
    throw make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("fused_run: waited {:.1f} s for rank {} {}", waited_s, m_peer, m_purpose),
        "check whether that rank is late, hangs or has exited; raise timeout_s if it needs more time");
}

}  // namespace isthmus::fused
