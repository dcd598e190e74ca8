// Reductions on a rank whose node reduces on its devices. The rank copies its shard of the sums to the host,
// reduces it there between nodes, and copies it back. Nodes on the host platform use reductions.cpp, with the
// same chunks and the same inter-node data.
#include <algorithm>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/block_map.hpp"
#include "base/elements.hpp"
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

  void run_allreduce();
  void run_reduce();
  void run_reduce_scatter();

 private:
  // Returns the number of elements of each block that one chunk contains. `count`: elements per block.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_element_bytes);
  }
  const std::byte* send(std::uint64_t begin) const {
    return static_cast<const std::byte*>(m_operation.send_buf) + begin * m_element_bytes;
  }
  std::byte* recv(std::uint64_t begin) const {
    return static_cast<std::byte*>(m_operation.recv_buf) + begin * m_element_bytes;
  }
  shard_map shards(const chunk_range& chunk) const { return {chunk.count, m_layout.leaders(), m_shard_mode}; }
  element_range own(const chunk_range& chunk) const { return shards(chunk).shard(m_layout.own_index()); }
  void reserve(std::uint64_t scratch_elements, std::uint64_t pinned_elements) const {
    m_device.reserve(scratch_elements * m_element_bytes, pinned_elements * m_element_bytes);
  }

  isthmus_operation call(isthmus_collective collective, const std::byte* source, std::byte* destination,
                         std::uint64_t count, int root) const {
    return make_operation(collective, m_operation.datatype, source, destination, count, root,
                          partial_op(m_operation.op));
  }
  void intra_node(isthmus_collective collective, const std::byte* source, std::byte* destination,
                  std::uint64_t count, int root = 0) const {
    isthmus_operation operation = call(collective, source, destination, count, root);
    operation.stream = m_device.stream();
    if (count > 0) m_hierarchy.comms.intra_node.run(operation);
  }
  void inter_node(isthmus_collective collective, const std::byte* source, std::byte* destination,
                  std::uint64_t count, int root = 0) const {
    if (count > 0) m_hierarchy.comms.inter_node.run(call(collective, source, destination, count, root));
  }
  void divide(std::byte* sums, std::uint64_t count) const {
    if (m_operation.op == ISTHMUS_AVG) isthmus::divide(sums, count, m_operation.datatype, m_layout.size());
  }

  void reduce_to_shards(const shard_map& shards, const std::byte* source, std::byte* destination) const;
  void allgather_shards(const shard_map& shards, std::byte* buffer) const;
  void fetch_own_shard(const chunk_range& chunk, const std::byte* sums) const {
    if (m_layout.is_leader())
      m_device.fetch(chunk.slot, sums + own(chunk).begin * m_element_bytes, own(chunk).count * m_element_bytes);
  }
  void upload_own_shard(const chunk_range& chunk, std::byte* results) const {
    if (m_layout.is_leader())
      m_device.move(results + own(chunk).begin * m_element_bytes, m_device.pinned(chunk.slot),
                    own(chunk).count * m_element_bytes);
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

// Each leader gets the sums of its shard at the position of the shard in `destination`. The rest of the buffer
// may also be written.
void device_reduction::reduce_to_shards(const shard_map& shards, const std::byte* source,
                                        std::byte* destination) const {
  if (!has_equal_shards(m_layout, shards))
    return intra_node(allreduce_phase, source, destination, shards.total());
  const std::uint64_t remainder = shards.remainder * m_element_bytes;
  const std::uint64_t own_offset =
      static_cast<std::uint64_t>(m_layout.own_index()) * shards.shard_elements * m_element_bytes;
  intra_node(allreduce_phase, source, destination, shards.remainder);
  intra_node(reduce_scatter_phase, source + remainder, destination + remainder + own_offset,
             shards.shard_elements);
}

void device_reduction::allgather_shards(const shard_map& shards, std::byte* buffer) const {
  if (!has_equal_shards(m_layout, shards)) {
    for (int leader = 0; leader < m_layout.leaders(); ++leader) {
      std::byte* const shard = buffer + shards.shard(leader).begin * m_element_bytes;
      intra_node(broadcast_phase, shard, shard, shards.shard(leader).count, leader);
    }
    return;
  }
  std::byte* const equal_shards = buffer + shards.remainder * m_element_bytes;
  intra_node(broadcast_phase, buffer, buffer, shards.remainder);
  intra_node(
      allgather_phase,
      equal_shards + static_cast<std::uint64_t>(m_layout.own_index()) * shards.shard_elements * m_element_bytes,
      equal_shards, shards.shard_elements);
}

void device_reduction::run_allreduce() {
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    reduce_to_shards(shards(chunk), send(chunk.begin), recv(chunk.begin));
    fetch_own_shard(chunk, recv(chunk.begin));
  };
  work.exchange = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(chunk.slot);
    inter_node(allreduce_phase, sums, sums, own(chunk).count);
    divide(sums, own(chunk).count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    upload_own_shard(chunk, recv(chunk.begin));
    allgather_shards(shards(chunk), recv(chunk.begin));
  };
  const std::uint64_t max_elements = std::min(step(m_operation.count), m_operation.count);
  reserve(0, max_elements);
  run_in_chunks(m_operation.count, step(m_operation.count), work);
}

void device_reduction::run_reduce() {
  const int root_node = m_layout.node_of(m_operation.root);
  const bool is_root_node = m_layout.own_node() == root_node;
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    reduce_to_shards(shards(chunk), send(chunk.begin), m_device.scratch(chunk.slot));
    fetch_own_shard(chunk, m_device.scratch(chunk.slot));
  };
  work.exchange = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(chunk.slot);
    inter_node(reduce_phase, sums, is_root_node ? sums : nullptr, own(chunk).count, root_node);
    if (is_root_node) divide(sums, own(chunk).count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    if (!is_root_node) return;
    std::byte* const results = m_device.scratch(chunk.slot);
    upload_own_shard(chunk, results);
    allgather_shards(shards(chunk), results);
    if (m_layout.rank() == m_operation.root)
      m_device.move(recv(chunk.begin), results, chunk.count * m_element_bytes);
  };
  const std::uint64_t max_elements = std::min(step(m_operation.count), m_operation.count);
  reserve(max_elements, max_elements);
  run_in_chunks(m_operation.count, step(m_operation.count), work);
}

// Precondition: all nodes have the same number of ranks, and all blocks have the same size.
void device_reduction::run_reduce_scatter() {
  const block_map blocks(m_operation, m_layout.rank(), m_layout.size());
  const auto leader_elements = [&](const chunk_range& chunk) {
    return static_cast<std::uint64_t>(m_layout.nodes()) * chunk.count;
  };
  const auto own_block = [&](const chunk_range& chunk) {
    return m_device.pinned(chunk.slot) +
           static_cast<std::uint64_t>(m_layout.own_node()) * chunk.count * m_element_bytes;
  };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const packed_send = m_device.scratch(chunk.slot);
    std::byte* destination = packed_send;
    for (const int rank : m_layout.order()) {
      m_device.move(destination, send(blocks.send.begin(rank) + chunk.begin), chunk.count * m_element_bytes);
      destination += chunk.count * m_element_bytes;
    }
    std::byte* const own_sums = packed_send + static_cast<std::uint64_t>(m_layout.own_index()) *
                                                  leader_elements(chunk) * m_element_bytes;
    intra_node(reduce_scatter_phase, packed_send, own_sums, leader_elements(chunk));
    m_device.fetch(chunk.slot, own_sums, leader_elements(chunk) * m_element_bytes);
  };
  work.exchange = [&](const chunk_range& chunk) {
    inter_node(reduce_scatter_phase, m_device.pinned(chunk.slot), own_block(chunk), chunk.count);
    divide(own_block(chunk), chunk.count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    m_device.move(recv(chunk.begin), own_block(chunk), chunk.count * m_element_bytes);
  };
  const auto size = static_cast<std::uint64_t>(m_layout.size());
  const std::uint64_t max_elements = std::min(step(m_operation.count, size), m_operation.count);
  reserve(max_elements * size, max_elements * static_cast<std::uint64_t>(m_layout.nodes()));
  run_in_chunks(m_operation.count, step(m_operation.count, size), work);
}

}  // namespace

void run_device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  device_reduction call(hierarchy, operation, mode);
  if (row.send_extent != extent::count) return call.run_reduce_scatter();
  if (row.recv_ranks == buffer_ranks::root) return call.run_reduce();
  call.run_allreduce();
}

}  // namespace isthmus::hierarchical
