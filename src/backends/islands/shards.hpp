// How a message is cut between the holders of an island. Equal in all islands.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/islands/composer.hpp"

namespace isthmus::hierarchical {

// Elements.
struct piece {
  std::uint64_t at = 0, count = 0;
};

// The rest that can't be divided is the first shard's beginning.
struct shards {
  std::uint64_t rest, each;
  int leaders;

  shards(std::uint64_t count, int of, cut how)
      : rest(how == cut::leader ? count : count % static_cast<std::uint64_t>(of)),
        each((count - rest) / static_cast<std::uint64_t>(of)),
        leaders(of) {}

  std::uint64_t total() const { return rest + each * static_cast<std::uint64_t>(leaders); }
  piece of(int index) const {
    if (index >= leaders) return {};
    if (index == 0) return {0, rest + each};
    return {rest + static_cast<std::uint64_t>(index) * each, each};
  }
};

// Counts and displacements by rank of a part.
struct spans {
  std::vector<std::uint64_t> counts, displs;

  void add(std::uint64_t at, std::uint64_t count) {
    counts.push_back(count);
    displs.push_back(at);
  }
};

// What the ranks of this island have of a message.
inline spans spans_of(const shards& cuts, int ranks) {
  spans made;
  for (int index = 0; index < ranks; ++index) made.add(cuts.of(index).at, cuts.of(index).count);
  return made;
}

// Whether every rank of every island holds a shard, equal but for the rest.
inline bool spreads_evenly(const rank_layout& layout, const shards& cuts) {
  return all.is_even() && all.leaders() > 1 && cuts.each > 0;
}

// What there is of each rank's block in a chunk, one after the other in the order of the layout. Elements.
class packed {
 public:
  packed() = default;
  template <typename Length>
  packed(const rank_layout& layout, Length&& length) : m_at{0} {
    for (const int rank : all.order()) {
      const std::uint64_t elements = length(rank);
      m_is_equal = m_is_equal && (m_at.size() == 1 || elements == m_at[1]);
      m_at.push_back(m_at.back() + elements);
    }
  }

  bool is_equal() const { return m_is_equal; }
  std::uint64_t total() const { return m_at.back(); }
  piece of(index_range positions) const {
    const auto begin = static_cast<std::size_t>(positions.begin), n = static_cast<std::size_t>(positions.count);
    return {m_at[begin], m_at[begin + n] - m_at[begin]};
  }
  piece at(std::size_t position) const { return {m_at[position], m_at[position + 1] - m_at[position]}; }

 private:
  std::vector<std::uint64_t> m_at{0};
  bool m_is_equal = true;
};

// Gives every rank of an island the whole of what its holders have in their shards of `buffer`.
void allgather_intra_node(const node_hierarchy& hierarchy, const shards& cuts, isthmus_datatype datatype, std::byte* buffer);

}  // namespace isthmus::hierarchical
