#include "backend/copy_engine/movement.hpp"

#include <algorithm>

#include "runtime/tables.hpp"

namespace isthmus::copy_engine {
namespace {

// Fills the blocks; the own one is among them.
class describer {
 public:
  describer(const isthmus_operation& operation, int rank, int size, movement& moved)
      : m_operation(operation),
        m_rank(static_cast<std::size_t>(rank)),
        m_size(static_cast<std::size_t>(size)),
        m_width(bytes_of(operation.datatype)),
        m_bytes(operation.count * m_width),
        m_moved(moved) {}

  void gather_everywhere() {
    for (std::size_t peer = 0; peer < m_size; ++peer) {
      m_moved.outgoing[peer] = {0, m_bytes};
      m_moved.incoming[peer] = {peer * m_bytes, m_bytes};
      m_moved.longest[peer] = m_bytes;
    }
    m_moved.same_for_all = true;
  }

  void gather_everywhere_by_counts() {
    for (std::size_t peer = 0; peer < m_size; ++peer) {
      const std::uint64_t bytes = m_operation.recv_counts[peer] * m_width;
      m_moved.outgoing[peer] = {0, m_bytes};
      m_moved.incoming[peer] = {m_operation.recv_displs[peer] * m_width, bytes};
      m_moved.longest[peer] = bytes;
    }
    m_moved.same_for_all = true;
  }

  void exchange() {
    for (std::size_t peer = 0; peer < m_size; ++peer) {
      m_moved.outgoing[peer] = m_moved.incoming[peer] = {peer * m_bytes, m_bytes};
      m_moved.longest[peer] = m_bytes;
    }
  }

  // Blocks of all sources meet in one place, where they are combined.
  void combine() {
    for (std::size_t peer = 0; peer < m_size; ++peer) {
      m_moved.outgoing[peer] = {peer * m_bytes, m_bytes};
      m_moved.incoming[peer] = {0, m_bytes};
      m_moved.longest[peer] = m_bytes;
    }
  }

  void gather_at_root() {
    const auto root = static_cast<std::size_t>(m_operation.root);
    m_moved.outgoing[root] = {0, m_bytes};
    for (std::size_t peer = 0; peer < m_size; ++peer) {
      if (m_rank == root) m_moved.incoming[peer] = {peer * m_bytes, m_bytes};
      if (peer != root) m_moved.longest[peer] = m_bytes;
    }
    m_moved.same_for_all = true;
  }

  // `step`: from one reader's block to the next.
  void spread_from_root(std::uint64_t step) {
    const auto root = static_cast<std::size_t>(m_operation.root);
    m_moved.incoming[root] = {0, m_bytes};
    for (std::size_t peer = 0; peer < m_size && m_rank == root; ++peer)
      m_moved.outgoing[peer] = {peer * step, m_bytes};
    m_moved.longest[root] = m_bytes;
    m_moved.same_for_all = step == 0;
  }

 private:
  const isthmus_operation& m_operation;
  std::size_t m_rank, m_size;
  std::uint64_t m_width, m_bytes;
  movement& m_moved;
};

}  // namespace

bool is_moved(isthmus_collective collective) {
  switch (collective) {
    case ISTHMUS_BROADCAST:
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHER:
    case ISTHMUS_SCATTER:
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_REDUCE_SCATTER: return true;
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV:
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return false;
}

void describe(const isthmus_operation& operation, int rank, int size, movement& moved) {
  const auto ranks = static_cast<std::size_t>(size);
  moved.outgoing.assign(ranks, {});
  moved.incoming.assign(ranks, {});
  moved.longest.assign(ranks, 0);
  moved.same_for_all = false;
  describer describer(operation, rank, size, moved);
  switch (operation.collective) {
    case ISTHMUS_ALLGATHER: describer.gather_everywhere(); break;
    case ISTHMUS_ALLGATHERV: describer.gather_everywhere_by_counts(); break;
    case ISTHMUS_ALLTOALL: describer.exchange(); break;
    case ISTHMUS_REDUCE_SCATTER: describer.combine(); break;
    case ISTHMUS_GATHER: describer.gather_at_root(); break;
    case ISTHMUS_BROADCAST: describer.spread_from_root(0); break;
    case ISTHMUS_SCATTER: describer.spread_from_root(operation.count * bytes_of(operation.datatype)); break;
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV:
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  if (size == 1) moved.longest.assign(1, 0);
  moved.total_in = 0;
  for (int source = 0; source < size; ++source)
    if (source != rank) moved.total_in += moved.incoming[static_cast<std::size_t>(source)].bytes;
}

}  // namespace isthmus::copy_engine
