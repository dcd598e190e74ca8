// Which ranks form which island, and who holds whose data on the way from one island to another. Equal on all
// ranks.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus::hierarchical {

// A run of consecutive entries.
struct index_range {
  int begin = 0, count = 0;
};

// As many ranks of each island as the smallest one has, its holders, talk to other islands: holder h to the
// holders h of all others. Rank i of an island is served by its holder i modulo their number.
class rank_layout {
 public:
  // `node_of`: of every rank, numbered from 0 on.
  rank_layout(int rank, std::vector<int> node_of);

  int rank() const { return m_rank; }
  int size() const { return static_cast<int>(m_node_of.size()); }
  int nodes() const { return static_cast<int>(m_members.size()); }
  int leaders() const { return m_leaders; }
  bool is_even() const { return m_is_even; }  // all islands have as many ranks, so all ranks are holders

  const std::vector<int>& members(int node) const { return m_members[static_cast<std::size_t>(node)]; }
  int node_of(int rank) const { return m_node_of[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return m_index_of[static_cast<std::size_t>(rank)]; }  // in its island

  int own_node() const { return node_of(m_rank); }
  int own_index() const { return index_of(m_rank); }
  int own_node_size() const { return static_cast<int>(members(own_node()).size()); }
  bool is_leader() const { return own_index() < m_leaders; }
  int leader_of(int rank) const { return index_of(rank) % m_leaders; }

  // All ranks, ordered by (holder, island, rank): what one holder serves is in one piece, and so is what it
  // serves of one island.
  const std::vector<int>& order() const { return m_order; }
  int position_of(int rank) const { return m_position_of[static_cast<std::size_t>(rank)]; }
  index_range leader_range(int leader) const;
  index_range leader_range(int leader, int node) const;

 private:
  int m_rank;
  int m_leaders = 0;
  bool m_is_even = true;
  std::vector<std::vector<int>> m_members;
  std::vector<int> m_node_of, m_index_of, m_order, m_position_of;
};

}  // namespace isthmus::hierarchical
