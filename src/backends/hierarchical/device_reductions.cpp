// A reduction on a rank whose island sums on its device: the sums that this rank holds go to the host, between
// islands there, and back. Ranks of islands on the host do the same by reductions.cpp; the chunks and what
// crosses are equal.
#include <algorithm>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/phases.hpp"
#include "backends/hierarchical/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

class device_reduction {
 public:
  device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode)
      : m_hierarchy(hierarchy),
        m_layout(hierarchy.layout),
        m_operation(operation),
        m_device(*hierarchy.device),
        m_shard_mode(mode),
        m_element_bytes(bytes_of(operation.datatype)) {}

  void to_all();
  void to_one();
  void to_each();

 private:
  // Of all ranks' blocks, where each has `count` elements.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_element_bytes);
  }
  const std::byte* send(std::uint64_t at) const {
    return static_cast<const std::byte*>(m_operation.send_buf) + at * m_element_bytes;
  }
  std::byte* recv(std::uint64_t at) const { return static_cast<std::byte*>(m_operation.recv_buf) + at * m_element_bytes; }
  shard_map shards(const chunk_range& chunk) const { return {chunk.count, m_layout.leaders(), m_shard_mode}; }
  element_range own(const chunk_range& chunk) const { return shards(chunk).shard(m_layout.own_index()); }
  void reserve(std::uint64_t scratch_elements, std::uint64_t pinned_elements) const {
    m_device.reserve(scratch_elements * m_element_bytes, pinned_elements * m_element_bytes);
  }

  isthmus_operation call(isthmus_collective collective, const std::byte* from, std::byte* to,
                         std::uint64_t count, int root) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = m_operation.datatype;
    // The average is of the sum of all.
    operation.op = m_operation.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_operation.op;
    operation.count = count;
    operation.root = root;
    operation.send_buf = from;
    operation.recv_buf = to;
    return operation;
  }
  void intra_node(isthmus_collective collective, const std::byte* from, std::byte* to, std::uint64_t count,
              int root = 0) const {
    isthmus_operation operation = call(collective, from, to, count, root);
    operation.stream = m_device.stream();
    if (count > 0) m_hierarchy.comms.intra_node.run(operation);
  }
  void inter_node(isthmus_collective collective, const std::byte* from, std::byte* to, std::uint64_t count,
               int root = 0) const {
    if (count > 0) m_hierarchy.comms.inter_node.run(call(collective, from, to, count, root));
  }
  void divide(std::byte* sums, std::uint64_t count) const {
    if (m_operation.op == ISTHMUS_AVG) mpi::divide(sums, count, m_operation.datatype, m_layout.size());
  }

  void reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const;
  void share(const shard_map& shards, std::byte* buffer) const;
  void fetch_own_shard(const chunk_range& chunk, const std::byte* sums) const {
    if (m_layout.is_leader()) m_device.fetch(chunk.slot, sums + own(chunk).begin * m_element_bytes, own(chunk).count * m_element_bytes);
  }
  void upload_own_shard(const chunk_range& chunk, std::byte* results) const {
    if (m_layout.is_leader())
      m_device.upload(results + own(chunk).begin * m_element_bytes, m_device.pinned(chunk.slot), own(chunk).count * m_element_bytes);
  }
  void run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work) const {
    m_hierarchy.run_in_chunks(count, step, work);
    m_device.finish();
  }

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_operation;
  device_staging& m_device;
  shard_mode m_shard_mode;
  std::uint64_t m_element_bytes;
};

// Each holder gets the sums of its shard, where they lie in `to`; others may get more.
void device_reduction::reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const {
  if (!has_equal_shards(m_layout, shards)) return intra_node(phase::allreduce, from, to, shards.total());
  const std::uint64_t rest = shards.remainder * m_element_bytes;
  const std::uint64_t mine = static_cast<std::uint64_t>(m_layout.own_index()) * shards.shard_elements * m_element_bytes;
  intra_node(phase::allreduce, from, to, shards.remainder);
  intra_node(phase::reduce_scatter, from + rest, to + rest + mine, shards.shard_elements);
}

void device_reduction::share(const shard_map& shards, std::byte* buffer) const {
  if (!has_equal_shards(m_layout, shards)) {
    for (int leader = 0; leader < m_layout.leaders(); ++leader) {
      std::byte* const shard = buffer + shards.shard(leader).begin * m_element_bytes;
      intra_node(phase::broadcast, shard, shard, shards.shard(leader).count, leader);
    }
    return;
  }
  std::byte* const even = buffer + shards.remainder * m_element_bytes;
  intra_node(phase::broadcast, buffer, buffer, shards.remainder);
  intra_node(phase::allgather, even + static_cast<std::uint64_t>(m_layout.own_index()) * shards.shard_elements * m_element_bytes, even,
         shards.shard_elements);
}

void device_reduction::to_all() {
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    reduce_to_shards(shards(chunk), send(chunk.begin), recv(chunk.begin));
    fetch_own_shard(chunk, recv(chunk.begin));
  };
  work.cross = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(chunk.slot);
    inter_node(phase::allreduce, sums, sums, own(chunk).count);
    divide(sums, own(chunk).count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    upload_own_shard(chunk, recv(chunk.begin));
    share(shards(chunk), recv(chunk.begin));
  };
  const std::uint64_t most = std::min(step(m_operation.count), m_operation.count);
  reserve(0, most);
  run_in_chunks(m_operation.count, step(m_operation.count), work);
}

void device_reduction::to_one() {
  const int root_node = m_layout.node_of(m_operation.root);
  const bool takes = m_layout.own_node() == root_node;
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    reduce_to_shards(shards(chunk), send(chunk.begin), m_device.scratch(chunk.slot));
    fetch_own_shard(chunk, m_device.scratch(chunk.slot));
  };
  work.cross = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(chunk.slot);
    inter_node(phase::reduce, sums, takes ? sums : nullptr, own(chunk).count, root_node);
    if (takes) divide(sums, own(chunk).count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    if (!takes) return;
    std::byte* const results = m_device.scratch(chunk.slot);
    upload_own_shard(chunk, results);
    share(shards(chunk), results);
    if (m_layout.rank() == m_operation.root) m_device.move(recv(chunk.begin), results, chunk.count * m_element_bytes);
  };
  const std::uint64_t most = std::min(step(m_operation.count), m_operation.count);
  reserve(most, most);
  run_in_chunks(m_operation.count, step(m_operation.count), work);
}

// Islands are even, and blocks equal.
void device_reduction::to_each() {
  const block_map blocks(m_operation, m_layout.rank(), m_layout.size());
  const auto served = [&](const chunk_range& chunk) {
    return static_cast<std::uint64_t>(m_layout.nodes()) * chunk.count;
  };
  const auto own_block = [&](const chunk_range& chunk) {
    return m_device.pinned(chunk.slot) + static_cast<std::uint64_t>(m_layout.own_node()) * chunk.count * m_element_bytes;
  };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const packed = m_device.scratch(chunk.slot);
    std::byte* to = packed;
    for (const int rank : m_layout.order()) {
      m_device.move(to, send(blocks.send.begin(rank) + chunk.begin), chunk.count * m_element_bytes);
      to += chunk.count * m_element_bytes;
    }
    std::byte* const mine = packed + static_cast<std::uint64_t>(m_layout.own_index()) * served(chunk) * m_element_bytes;
    intra_node(phase::reduce_scatter, packed, mine, served(chunk));
    m_device.fetch(chunk.slot, mine, served(chunk) * m_element_bytes);
  };
  work.cross = [&](const chunk_range& chunk) {
    inter_node(phase::reduce_scatter, m_device.pinned(chunk.slot), own_block(chunk), chunk.count);
    divide(own_block(chunk), chunk.count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    m_device.upload(recv(chunk.begin), own_block(chunk), chunk.count * m_element_bytes);
  };
  const auto ranks = static_cast<std::uint64_t>(m_layout.size());
  const std::uint64_t most = std::min(step(m_operation.count, hierarchy), m_operation.count);
  reserve(most * hierarchy, most * static_cast<std::uint64_t>(m_layout.nodes()));
  run_in_chunks(m_operation.count, step(m_operation.count, hierarchy), work);
}

}  // namespace

void run_device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  device_reduction operation(hierarchy, operation, mode);
  if (row.send_extent != extent::count) return operation.to_each();
  if (row.recv_ranks == buffer_ranks::root) return operation.to_one();
  operation.to_all();
}

}  // namespace isthmus::hierarchical
