// A box of cells that is cut among ranks as a grid of blocks, and what a rank exchanges with the blocks around
// its own. Periodic in all dimensions. Dimensions are x, y, z; x varies fastest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/transport.hpp"

namespace apps {

using triple = std::array<int, 3>;

// How ranks are arranged: the factors whose blocks have the least surface between ranks among those that
// `fits(dimension, factor)`; zeros where none do.
triple arrange_ranks(const std::array<double, 3>& size, int ranks, const std::function<bool(std::size_t, int)>& fits);
// Among those that divide `size`. Throws bad_argument where none does.
triple arrange_ranks(const std::array<std::uint64_t, 3>& size, int ranks);

// The part of one rank, within one layer of ghost cells.
class block {
 public:
  block(const std::array<std::uint64_t, 3>& size, const triple& ranks, int rank);

  const triple& own() const { return m_own; }      // cells of this rank in each dimension
  const triple& first() const { return m_first; }  // the first of them in the box
  // With ghosts, and the position of a cell among those; -1 and own() are ghosts.
  std::uint64_t all_cells() const;
  std::uint32_t index(int x, int y, int z) const;
  // The rank of the block at a distance.
  int neighbor(const triple& direction) const;

 private:
  triple m_ranks, m_place, m_own, m_first;
};

// Ghosts of one layer: which cells go where, ordered by peer, so that what goes to one peer is in one piece.
struct ghost_plan {
  // 6 directions or 26.
  ghost_plan(const block& own, int neighbors);

  std::vector<unsigned> sent, received;  // cells, in the order of the messages
  // In cells: one message for each direction, or for each peer.
  std::vector<message> out, in, out_by_peer, in_by_peer;
};

// In bytes.
std::vector<message> scale(std::vector<message> messages, std::uint64_t cell_bytes);

}  // namespace apps
