// A box of cells that is divided among ranks as a grid of blocks, and the ghost cells that a rank exchanges
// with its neighbors. Periodic in all dimensions. Dimensions are x, y, z; x varies fastest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/transport.hpp"

namespace apps {

using triple = std::array<int, 3>;

// The arrangement of ranks with the smallest surface between them, among the factors for which `fits(dimension,
// factor)` holds; zeros if there is none.
triple arrange_ranks(const std::array<double, 3>& size, int ranks,
                     const std::function<bool(std::size_t, int)>& fits);
// The best arrangement among the factors that divide `size`. Throws bad_argument if there is none.
triple arrange_ranks(const std::array<std::uint64_t, 3>& size, int ranks);

// The block of one rank, surrounded by one layer of ghost cells.
class block {
 public:
  block(const std::array<std::uint64_t, 3>& size, const triple& ranks, int rank);

  const triple& own() const { return m_own; }      // cells of this rank in each dimension
  const triple& first() const { return m_first; }  // the first of them in the box
  // The number of cells including ghosts, and the index of a cell among them; coordinates -1 and
  // own() are ghosts.
  std::uint64_t all_cells() const;
  std::uint32_t index(int x, int y, int z) const;
  // The rank of the neighboring block in a direction.
  int neighbor(const triple& direction) const;

 private:
  triple m_ranks, m_position, m_own, m_first;
};

// The exchange plan for one layer of ghosts. Cells are ordered by peer, so that the data for one
// peer is contiguous.
struct ghost_plan {
  // With 6 or 26 neighbors.
  ghost_plan(const block& own, int neighbors);

  std::vector<unsigned> sent, received;  // cells, in the order of the messages
  // Message sizes in cells: one message per direction, or one per peer.
  std::vector<message> out, in, out_by_peer, in_by_peer;
};

// Converts message sizes from cells to bytes.
std::vector<message> scale(std::vector<message> messages, std::uint64_t cell_bytes);

}  // namespace apps
