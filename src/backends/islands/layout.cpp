#include "backends/islands/layout.hpp"

#include <algorithm>
#include <utility>

namespace isthmus::hierarchical {

layout::layout(int rank, std::vector<int> island_of)
    : m_rank(rank), m_island_of(std::move(island_of)), m_place_of(m_island_of.size()) {
  m_members.resize(static_cast<std::size_t>(*std::ranges::max_element(m_island_of)) + 1);
  for (int each = 0; each < size(); ++each) {
    auto& node = m_members[static_cast<std::size_t>(this->island_of(each))];
    m_index_of.push_back(static_cast<int>(node.size()));
    node.push_back(each);
  }
  const auto [least, most] = std::ranges::minmax(m_members, {}, &std::vector<int>::size);
  m_holders = static_cast<int>(least.size());
  m_even = least.size() == most.size();
  for (int holder = 0; holder < m_holders; ++holder)
    for (const auto& node : m_members)
      for (const int each : node)
        if (holder_of(each) == holder) m_order.push_back(each);
  for (std::size_t place = 0; place < m_order.size(); ++place)
    m_place_of[static_cast<std::size_t>(m_order[place])] = static_cast<int>(place);
}

run layout::served_by(int holder) const {
  run all = served_by(holder, 0);
  for (int node = 1; node < nodes(); ++node) all.n += served_by(holder, node).n;
  return all;
}

run layout::served_by(int holder, int node) const {
  const auto& ranks = members(node);
  const int others = static_cast<int>(ranks.size()) - 1 - holder;
  return {place_of(ranks[static_cast<std::size_t>(holder)]), 1 + others / m_holders};
}

}  // namespace isthmus::hierarchical
