#include "blocks.hpp"

#include <algorithm>
#include <string>

#include "common/options.hpp"

namespace apps {

triple arrange_ranks(const std::array<double, 3>& size, int ranks,
                     const std::function<bool(std::size_t, int)>& fits) {
  triple best{};
  double min_surface = 0;
  for (int x = 1; x <= ranks; ++x)
    for (int y = 1; y <= ranks / x; ++y) {
      const int z = ranks / x / y;
      if (x * y * z != ranks || !fits(0, x) || !fits(1, y) || !fits(2, z)) continue;
      const double a = size[0] / x, b = size[1] / y, c = size[2] / z;
      // A dimension that is not divided has no surface between ranks. Ties go to the arrangement whose faces
      // are contiguous in memory.
      const double surface = (x > 1 ? b * c : 0) + (y > 1 ? a * c : 0) + (z > 1 ? a * b : 0);
      if (best[0] != 0 && surface >= min_surface) continue;
      min_surface = surface;
      best = {x, y, z};
    }
  return best;
}

triple arrange_ranks(const std::array<std::uint64_t, 3>& size, int ranks) {
  const triple best = arrange_ranks(
      {static_cast<double>(size[0]), static_cast<double>(size[1]), static_cast<double>(size[2])}, ranks,
      [&](std::size_t d, int parts) { return size.at(d) % static_cast<unsigned>(parts) == 0; });
  if (best[0] != 0) return best;
  throw bad_argument(
      "--size: " + std::to_string(size[0]) + " x " + std::to_string(size[1]) + " x " + std::to_string(size[2]) +
      " cells among " + std::to_string(ranks) +
      " ranks, must be divisible by factors of the number of ranks; change the size or the number of ranks");
}

block::block(const std::array<std::uint64_t, 3>& size, const triple& ranks, int rank)
    : m_ranks(ranks), m_position{rank % ranks[0], rank / ranks[0] % ranks[1], rank / ranks[0] / ranks[1]} {
  for (std::size_t d = 0; d < 3; ++d) {
    m_own.at(d) = static_cast<int>(size.at(d)) / ranks.at(d);
    m_first.at(d) = m_position.at(d) * m_own.at(d);
  }
}

std::uint64_t block::all_cells() const {
  std::uint64_t cells = 1;
  for (const int n : m_own) cells *= static_cast<std::uint64_t>(n) + 2;
  return cells;
}

std::uint32_t block::index(int x, int y, int z) const {
  return static_cast<std::uint32_t>(((z + 1) * (m_own[1] + 2) + y + 1) * (m_own[0] + 2) + x + 1);
}

int block::neighbor(const triple& direction) const {
  triple place{};
  for (std::size_t d = 0; d < 3; ++d)
    place.at(d) = (m_position.at(d) + direction.at(d) + m_ranks.at(d)) % m_ranks.at(d);
  return (place[2] * m_ranks[1] + place[1]) * m_ranks[0] + place[0];
}

namespace {

// Appends the cells next to the neighbor in a direction: own cells, or the ghosts outside of them.
void append_cells(const block& own, const triple& direction, bool ghosts, std::vector<unsigned>& cells) {
  triple begin{}, end{};
  for (std::size_t d = 0; d < 3; ++d) {
    const int n = own.own().at(d), direction_in_d = direction.at(d);
    begin.at(d) = direction_in_d == 0 ? 0 : direction_in_d > 0 ? (ghosts ? n : n - 1) : (ghosts ? -1 : 0);
    end.at(d) = direction_in_d == 0 ? n : begin.at(d) + 1;
  }
  for (int z = begin[2]; z < end[2]; ++z)
    for (int y = begin[1]; y < end[1]; ++y)
      for (int x = begin[0]; x < end[0]; ++x) cells.push_back(own.index(x, y, z));
}

std::vector<triple> directions_of(int neighbors) {
  std::vector<triple> directions;
  for (int z = -1; z <= 1; ++z)
    for (int y = -1; y <= 1; ++y)
      for (int x = -1; x <= 1; ++x) {
        const int distance = std::abs(x) + std::abs(y) + std::abs(z);
        if (distance > 0 && (neighbors == 26 || distance == 1)) directions.push_back({x, y, z});
      }
  return directions;
}

std::vector<message> join_peers(const std::vector<message>& messages) {
  std::vector<message> joined;
  for (const message& entry : messages) {
    if (!joined.empty() && joined.back().peer == entry.peer) {
      joined.back().bytes += entry.bytes;
    } else {
      joined.push_back(entry);
    }
  }
  return joined;
}

}  // namespace

// Messages between two ranks are in the order of the sender's directions: the message that it sends in
// direction d is the one that this rank receives from the block at -d.
ghost_plan::ghost_plan(const block& own, int neighbors) {
  const auto fill = [&](bool incoming, std::vector<unsigned>& cells, std::vector<message>& messages) {
    std::vector<std::pair<int, triple>> order;
    for (const triple& d : directions_of(neighbors)) {
      const triple direction_in_d = incoming ? triple{-d[0], -d[1], -d[2]} : d;
      order.emplace_back(own.neighbor(direction_in_d), direction_in_d);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [peer, direction_in_d] : order) {
      const std::uint64_t first = cells.size();
      append_cells(own, direction_in_d, incoming, cells);
      messages.push_back({peer, first, cells.size() - first});
    }
  };
  fill(false, sent, out);
  fill(true, received, in);
  out_by_peer = join_peers(out);
  in_by_peer = join_peers(in);
}

std::vector<message> scale(std::vector<message> messages, std::uint64_t cell_bytes) {
  for (message& entry : messages) {
    entry.offset *= cell_bytes;
    entry.bytes *= cell_bytes;
  }
  return messages;
}

}  // namespace apps
