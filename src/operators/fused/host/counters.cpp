#include "operators/fused/host/counters.hpp"

#include <cstring>
#include <new>

#include "base/error.hpp"

namespace isthmus::fused {
namespace {

std::vector<void*> peers_of(communicator& owner, void* block) {
  isthmus_heap_block heap_block{};
  owner.heap().find(block, 1, &heap_block, nullptr);
  return {heap_block.peers, heap_block.peers + owner.ranks().size};
}

}  // namespace

host_counters::host_counters(communicator& owner, std::uint64_t stage_bytes) : m_owner(owner) {
  m_own_lines = owner.allocate_symmetric(sizeof(counter_line));
  m_lines = peers_of(owner, m_own_lines);
  new (m_own_lines) counter_line{};
  if (stage_bytes > 0) {
    m_own_stage = owner.allocate_symmetric(
        stage_bytes);  // collective: every line is initialized before any rank reads it
    m_stages = peers_of(owner, m_own_stage);
  }
}

host_counters::~host_counters() {
  for (void* block : {m_own_stage, m_own_lines}) {
    try {
      if (block != nullptr) m_owner.heap().free(block);
    } catch (const error&) {  // NOLINT(bugprone-empty-catch)
      // The communicator was destroyed first, together with its heap.
    }
  }
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
