// Two-phase reduction: every rank reduces one slice of each chunk, then takes the other slices.
#include <algorithm>

#include "backend/host/algorithms.hpp"

namespace isthmus::host {
namespace {

// Chunk k of the vector, in elements, and how the ranks divide it.
class partition {
 public:
  partition(const team& team, const shape& s)
      : m_count(s.count),
        m_ranks(static_cast<std::uint64_t>(team.size())),
        m_line_elements(line_bytes / s.element_bytes),
        m_chunk(team.sizes().slot_bytes / s.element_bytes) {}

  std::uint64_t chunks() const { return (m_count + m_chunk - 1) / m_chunk; }
  std::uint64_t begin(std::uint64_t k) const { return k * m_chunk; }
  std::uint64_t length(std::uint64_t k) const { return std::min(m_chunk, m_count - begin(k)); }
  // Where the slice of `rank` begins in chunk k; slice_begin(k, rank + 1) is its end. Whole lines.
  std::uint64_t slice_begin(std::uint64_t k, int rank) const {
    const std::uint64_t slice = round_up((length(k) + m_ranks - 1) / m_ranks, m_line_elements);
    return std::min(length(k), slice * static_cast<std::uint64_t>(rank));
  }

 private:
  std::uint64_t m_count, m_ranks, m_line_elements, m_chunk;
};

class two_shot {
 public:
  two_shot(team& team, workspace& work, const shape& s, store shared)
      : m_team(team),
        m_work(work),
        m_shape(s),
        m_partition(team, s),
        m_takes(s.takes(team.rank())),
        m_shared(shared),
        m_results(store_for_results(team, s)) {}

  void run() {
    const std::uint64_t chunks = m_partition.chunks();
    m_first = m_team.take_tickets(chunks);
    stage(0);
    for (std::uint64_t k = 0; k < chunks; ++k) {
      // staging one chunk ahead and gathering one chunk behind hides the waits for both
      if (k + 1 < chunks) stage(k + 1);
      reduce(k);
      if (k > 0) gather(k - 1);
    }
    gather(chunks - 1);
    if (m_results == store::streaming) streaming_fence();
  }

 private:
  // The own slice is not staged: its only reader is this rank.
  void stage(std::uint64_t k) {
    const int me = m_team.rank();
    const std::uint64_t ticket = m_first + k, bytes = m_shape.element_bytes;
    m_team.reserve(ticket);
    std::byte* to = m_team.data(me, ticket);
    const std::byte* from = m_shape.send + m_partition.begin(k) * bytes;
    const std::uint64_t own_begin = m_partition.slice_begin(k, me) * bytes;
    const std::uint64_t own_end = m_partition.slice_begin(k, me + 1) * bytes;
    copy(to, from, own_begin, m_shared);
    copy(to + own_end, from + own_end, m_partition.length(k) * bytes - own_end, m_shared);
    publish(m_team.slot(me, ticket).staged, ticket);
  }

  void reduce(std::uint64_t k) {
    const int me = m_team.rank();
    const std::uint64_t ticket = m_first + k, bytes = m_shape.element_bytes;
    for (int i = 1; i < m_team.size(); ++i) {
      const int peer = (me + i) % m_team.size();
      m_team.wait_for(peer, m_team.slot(peer, ticket).staged, ticket);
    }
    const std::uint64_t begin = m_partition.slice_begin(k, me), end = m_partition.slice_begin(k, me + 1);
    const std::uint64_t chunk = m_partition.begin(k);
    std::byte* result = m_team.result(me, ticket);
    // block by block, so that the copy into the user's buffer reads the first-level cache
    const std::uint64_t block = page_bytes / bytes;
    alignas(line_bytes) std::byte reduced[page_bytes];
    for (std::uint64_t at = begin; at < end; at += block) {
      const std::uint64_t length = std::min(block, end - at);
      for (int r = 0; r < m_team.size(); ++r)
        m_work.sources[static_cast<std::size_t>(r)] =
            r == me ? m_shape.send + (chunk + at) * bytes : m_team.data(r, ticket) + at * bytes;
      std::byte* shared = result + (at - begin) * bytes;
      std::byte* out = m_shared == store::cached ? shared : reduced;
      m_shape.reduce(out, m_work.sources.data(), m_team.size(), length);
      copy(shared, out, length * bytes, m_shared);
      if (m_takes) copy(m_shape.recv + (chunk + at) * bytes, out, length * bytes, m_results);
    }
    publish(m_team.slot(me, ticket).reduced, ticket);
  }

  void gather(std::uint64_t k) {
    const std::uint64_t ticket = m_first + k, bytes = m_shape.element_bytes;
    for (int i = 1; m_takes && i < m_team.size(); ++i) {
      const int peer = (m_team.rank() + i) % m_team.size();
      const std::uint64_t begin = m_partition.slice_begin(k, peer), end = m_partition.slice_begin(k, peer + 1);
      m_team.wait_for(peer, m_team.slot(peer, ticket).reduced, ticket);
      copy(m_shape.recv + (m_partition.begin(k) + begin) * bytes, m_team.result(peer, ticket),
           (end - begin) * bytes, m_results);
    }
    m_team.complete(ticket);
  }

  void publish(flag& ready, std::uint64_t ticket) const {
    if (m_shared == store::streaming) streaming_fence();
    ready.store(ticket + 1, std::memory_order_release);
  }

  team& m_team;
  workspace& m_work;
  const shape& m_shape;
  partition m_partition;
  bool m_takes;
  store m_shared, m_results;
  std::uint64_t m_first = 0;
};

}  // namespace

void run_two_shot(team& team, workspace& work, const shape& s, store shared) {
  two_shot(team, work, s, shared).run();
}

}  // namespace isthmus::host
