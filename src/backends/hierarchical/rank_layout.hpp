// Assignment of ranks to nodes and leaders. Equal on all ranks.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus::hierarchical {

// A range of consecutive positions.
struct index_range {
  int begin = 0, count = 0;
};

// Each node has as many leaders as the smallest node has ranks. Leader h communicates with leader h of all
// other nodes. The leader of rank i of a node is i modulo the number of leaders. A "node" can also be the ranks
// of one node and platform (device_reducer).
class rank_layout {
 public:
  // `node_of[r]` is the node of rank r, numbered from 0.
  rank_layout(int rank, std::vector<int> node_of);

  int rank() const { return m_rank; }
  int size() const { return static_cast<int>(m_node_of.size()); }
  int nodes() const { return static_cast<int>(m_members.size()); }
  int leaders() const { return m_leaders; }
  bool is_even() const { return m_is_even; }  // all nodes have the same size, so all ranks are leaders

  const std::vector<int>& members(int node) const { return m_members[static_cast<std::size_t>(node)]; }
  int node_of(int rank) const { return m_node_of[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return m_index_of[static_cast<std::size_t>(rank)]; }  // within its node

  int own_node() const { return node_of(m_rank); }
  int own_index() const { return index_of(m_rank); }
  int own_node_size() const { return static_cast<int>(members(own_node()).size()); }
  bool is_leader() const { return own_index() < m_leaders; }
  int leader_of(int rank) const { return index_of(rank) % m_leaders; }

  // All ranks, ordered by (leader, node, rank). The ranks of one leader are contiguous. Among them, the ranks
  // of one node are contiguous.
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
