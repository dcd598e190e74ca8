// Exchange patterns of the applications: the messages of one rank.
//   halo6, halo26  a box of cells and its neighbors in a periodic grid: faces only, or with edges and corners
//   transpose      a block of equal size for every rank: alltoall
//   comd           a block of different size for every rank, some empty: alltoallv
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace patterns {

using word = std::uint32_t;  // unit of messages

// `count` words from or to `peer`, `offset` words from the start of the buffer.
struct segment {
  int peer;
  std::uint64_t offset, count;
};

enum class exchange_form { messages, alltoall, alltoallv };

struct exchange_plan {
  std::string name;
  exchange_form form = exchange_form::messages;
  int size = 1;
  // In posting order: the nth message to a peer matches the nth receive of that peer from this rank. For
  // collectives: one piece per rank, in rank order.
  std::vector<segment> sends, receives;
  std::uint64_t send_words = 0, receive_words = 0;  // sizes of the buffers
};

std::vector<std::string> names();

// `bytes`: size of a face for halo6 and halo26, of a block for transpose, of an average block for comd.
exchange_plan make_plan(const std::string& name, std::uint64_t bytes, int rank, int size);

// The send buffer of this rank.
std::vector<word> outgoing(const exchange_plan& plan, int rank);
// The expected receive buffer, which was filled with `poison` before the exchange.
inline constexpr word poison = 0xa5a5a5a5;
std::vector<word> incoming(const exchange_plan& plan, int rank);

}  // namespace patterns
