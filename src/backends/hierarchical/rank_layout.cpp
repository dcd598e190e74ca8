#include "backends/hierarchical/rank_layout.hpp"

#include <algorithm>
#include <utility>

namespace isthmus::hierarchical {

rank_layout::rank_layout(int rank, std::vector<int> node_of)
    : m_rank(rank), m_node_of(std::move(node_of)), m_position_of(m_node_of.size()) {
  m_members.resize(static_cast<std::size_t>(*std::ranges::max_element(m_node_of)) + 1);
  for (int each = 0; each < size(); ++each) {
    auto& node = m_members[static_cast<std::size_t>(m_node_of[static_cast<std::size_t>(each)])];
    m_index_of.push_back(static_cast<int>(node.size()));
    node.push_back(each);
  }
  const auto [smallest, largest] = std::ranges::minmax(m_members, {}, &std::vector<int>::size);
  m_leaders = static_cast<int>(smallest.size());
  m_is_even = smallest.size() == largest.size();
  for (int leader = 0; leader < m_leaders; ++leader)
    for (const auto& node : m_members)
      for (const int each : node)
        if (leader_of(each) == leader) m_order.push_back(each);
  for (std::size_t position = 0; position < m_order.size(); ++position)
    m_position_of[static_cast<std::size_t>(m_order[position])] = static_cast<int>(position);
}

index_range rank_layout::leader_range(int leader) const {
  index_range all = leader_range(leader, 0);
  for (int node = 1; node < nodes(); ++node) all.count += leader_range(leader, node).count;
  return all;
}

index_range rank_layout::leader_range(int leader, int node) const {
  const auto& ranks = members(node);
  const int later_ranks = static_cast<int>(ranks.size()) - 1 - leader;
  return {position_of(ranks[static_cast<std::size_t>(leader)]), 1 + later_ranks / m_leaders};
}

}  // namespace isthmus::hierarchical
