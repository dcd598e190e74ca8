// Division of a message into shards, one per leader. Equal on all nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/hierarchical/collectives.hpp"

namespace isthmus::hierarchical {

// Elements.
struct element_range {
  std::uint64_t begin = 0, count = 0;
};

// The first shard also contains the remainder of the division.
struct shard_map {
  std::uint64_t remainder, shard_elements;
  int leaders;

  shard_map(std::uint64_t count, int leader_count, shard_mode mode)
      : remainder(mode == shard_mode::single_leader ? count : count % static_cast<std::uint64_t>(leader_count)),
        shard_elements((count - remainder) / static_cast<std::uint64_t>(leader_count)),
        leaders(leader_count) {}

  std::uint64_t total() const { return remainder + shard_elements * static_cast<std::uint64_t>(leaders); }
  element_range shard(int index) const {
    if (index >= leaders) return {};
    if (index == 0) return {0, remainder + shard_elements};
    return {remainder + static_cast<std::uint64_t>(index) * shard_elements, shard_elements};
  }
};

// Counts and displacements, by rank of a subcommunicator.
struct block_counts {
  std::vector<std::uint64_t> counts, displs;

  void add(std::uint64_t offset, std::uint64_t count) {
    counts.push_back(count);
    displs.push_back(offset);
  }
  bool is_empty() const {
    return std::ranges::all_of(counts, [](std::uint64_t count) { return count == 0; });
  }
  // True if all blocks have the same length, and each follows the one before it.
  bool is_uniform() const {
    for (std::size_t i = 1; i < counts.size(); ++i)
      if (counts[i] != counts[0] || displs[i] != displs[i - 1] + counts[0]) return false;
    return true;
  }
};

// The shards of the ranks of one node; ranks that are not leaders have none.
inline block_counts shard_counts(const shard_map& shards, int ranks) {
  block_counts result;
  for (int index = 0; index < ranks; ++index) result.add(shards.shard(index).begin, shards.shard(index).count);
  return result;
}

// Calls function(ranks, blocks) for each group of ranks of each node. ranks[i] is the rank for which leader i of this rank's
// node works, and blocks has one entry per rank of this rank's node.
template <typename Block, typename Function>
void for_each_group(const rank_layout& layout, Block&& block, Function&& function) {
  for (int node = 0; node < layout.nodes(); ++node)
    for (int group = 0; group < layout.group_count(node); ++group) {
      const std::span<const int> ranks = layout.group(node, group);
      block_counts blocks;
      for (std::size_t i = 0; i < static_cast<std::size_t>(layout.own_node_size()); ++i) {
        const element_range each = i < ranks.size() ? block(ranks[i]) : element_range{};
        blocks.add(each.begin, each.count);
      }
      function(ranks, blocks);
    }
}

// True if every rank of every node has a shard, and the shards are equal except for the remainder.
inline bool has_equal_shards(const rank_layout& layout, const shard_map& shards) {
  return layout.is_even() && layout.leaders() > 1 && shards.shard_elements > 0;
}

// One chunk of each rank's block, packed in the order of the layout. Positions and lengths are in elements.
class packed_blocks {
 public:
  template <typename Length>
  packed_blocks(const rank_layout& layout, Length&& length) : m_offsets{0} {
    for (const int rank : layout.order()) m_offsets.push_back(m_offsets.back() + length(rank));
  }

  std::uint64_t total() const { return m_offsets.back(); }
  element_range range(index_range positions) const {
    const auto begin = static_cast<std::size_t>(positions.begin), n = static_cast<std::size_t>(positions.count);
    return {m_offsets[begin], m_offsets[begin + n] - m_offsets[begin]};
  }
  element_range block(std::size_t position) const {
    return {m_offsets[position], m_offsets[position + 1] - m_offsets[position]};
  }

 private:
  std::vector<std::uint64_t> m_offsets;
};

// Distributes the shards that the leaders have in `buffer` to all ranks of the node.
void allgather_intra_node(const node_hierarchy& hierarchy, const shard_map& shards, isthmus_datatype datatype,
                          std::byte* buffer);

// Sends blocks of `from` to all ranks of `comm`, and receives blocks of all ranks in `to`.
void exchange_blocks(const subcommunicator& comm, isthmus_datatype datatype, const void* from,
                     const block_counts& sends, void* to, const block_counts& receives);

}  // namespace isthmus::hierarchical
