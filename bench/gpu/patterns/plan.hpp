// What the applications exchange, without the applications: the messages of one rank.
//   halo6, halo26   a box of cells and its neighbours in a periodic grid of ranks: faces; edges and corners,
//   too transpose       a block of equal size for every rank: alltoall comd            a block of another size
//   for every rank, some of them empty: alltoallv
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace patterns {

using word = std::uint32_t;  // what messages are made of

// `count` words from or to `peer`, `at` words from the beginning of the buffer.
struct piece {
  int peer;
  std::uint64_t offset, count;
};

enum class exchange_form { messages, alltoall, alltoallv };

struct exchange_plan {
  std::string name;
  exchange_form form = exchange_form::messages;
  int size = 1;
  // In the order in which they are posted: the nth to a peer meets the nth that the peer expects from here. Of
  // the collectives one for each rank, in the order of ranks.
  std::vector<piece> sends, receives;
  std::uint64_t send_words = 0, receive_words = 0;  // of the buffers
};

std::vector<std::string> names();

// `bytes`: of a face of halo6 and halo26, of a block of transpose, of a block of comd on average.
exchange_plan make_plan(const std::string& name, std::uint64_t bytes, int rank, int size);

// What this rank sends.
std::vector<word> outgoing(const exchange_plan& plan, int rank);
// What lies in the receiving buffer afterwards, which held `poison` everywhere.
inline constexpr word poison = 0xa5a5a5a5;
std::vector<word> incoming(const exchange_plan& plan, int rank);

}  // namespace patterns
