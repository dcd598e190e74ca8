// Which ranks form which island, and who holds whose data on the way from one island to another. Equal on all
// ranks.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus::hierarchical {

// A run of consecutive entries.
struct run {
  int begin = 0, n = 0;
};

// As many ranks of each island as the smallest one has, its holders, talk to other islands: holder h to the
// holders h of all others. Rank i of an island is served by its holder i modulo their number.
class layout {
 public:
  // `island_of`: of every rank, numbered from 0 on.
  layout(int rank, std::vector<int> island_of);

  int rank() const { return m_rank; }
  int size() const { return static_cast<int>(m_island_of.size()); }
  int nodes() const { return static_cast<int>(m_members.size()); }
  int holders() const { return m_holders; }
  bool even() const { return m_even; }  // all islands have as many ranks, so all ranks are holders

  const std::vector<int>& members(int node) const { return m_members[static_cast<std::size_t>(node)]; }
  int island_of(int rank) const { return m_island_of[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return m_index_of[static_cast<std::size_t>(rank)]; }  // in its island

  int own_island() const { return island_of(m_rank); }
  int own_index() const { return index_of(m_rank); }
  int own_ranks() const { return static_cast<int>(members(own_island()).size()); }
  bool holds() const { return own_index() < m_holders; }
  int holder_of(int rank) const { return index_of(rank) % m_holders; }

  // All ranks, ordered by (holder, island, rank): what one holder serves is in one piece, and so is what it
  // serves of one island.
  const std::vector<int>& order() const { return m_order; }
  int place_of(int rank) const { return m_place_of[static_cast<std::size_t>(rank)]; }
  run served_by(int holder) const;
  run served_by(int holder, int node) const;

 private:
  int m_rank;
  int m_holders = 0;
  bool m_even = true;
  std::vector<std::vector<int>> m_members;
  std::vector<int> m_island_of, m_index_of, m_order, m_place_of;
};

}  // namespace isthmus::hierarchical
