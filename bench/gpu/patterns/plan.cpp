#include "plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>

namespace patterns {
namespace {

// Untouched words between pieces: a message that is too long is seen.
constexpr std::uint64_t gap_words = 3;

using place_in_grid = std::array<int, 3>;

// Ranks in a box whose sides differ as little as can be.
place_in_grid sides_of(int size) {
  place_in_grid sides{1, 1, 1};
  for (int factor = 2; size > 1;) {
    if (size % factor != 0) {
      ++factor;
      continue;
    }
    *std::min_element(sides.begin(), sides.end()) *= factor;
    size /= factor;
  }
  return sides;
}

int neighbour_of(int rank, const place_in_grid& sides, const place_in_grid& direction) {
  const place_in_grid at{rank % sides[0], rank / sides[0] % sides[1], rank / sides[0] / sides[1]};
  place_in_grid to{};
  for (std::size_t axis = 0; axis < 3; ++axis)
    to[axis] = (at[axis] + direction[axis] + sides[axis]) % sides[axis];
  return (to[2] * sides[1] + to[1]) * sides[0] + to[0];
}

void append(std::vector<piece>& pieces, std::uint64_t& end, int peer, std::uint64_t count) {
  pieces.push_back({peer, end, count});
  end += count + gap_words;
}

// Towards each direction goes what the neighbour on the other side is sent, too, so both lists agree in order.
void add_neighbours(plan& of, int rank, bool faces_only, std::uint64_t face_words) {
  const place_in_grid sides = sides_of(of.size);
  const auto edge_words = static_cast<std::uint64_t>(std::lround(std::sqrt(static_cast<double>(face_words))));
  const std::uint64_t words_by_axes[] = {0, face_words, edge_words, 1};
  for (int code = 0; code < 27; ++code) {
    const place_in_grid to{code % 3 - 1, code / 3 % 3 - 1, code / 9 - 1};
    const auto axes = static_cast<std::size_t>(std::abs(to[0]) + std::abs(to[1]) + std::abs(to[2]));
    if (axes == 0 || (faces_only && axes > 1)) continue;
    append(of.sends, of.send_words, neighbour_of(rank, sides, to), words_by_axes[axes]);
    const place_in_grid from{-to[0], -to[1], -to[2]};
    append(of.receives, of.receive_words, neighbour_of(rank, sides, from), words_by_axes[axes]);
  }
}

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccdU;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53U;
  return value ^ (value >> 33);
}

// Between nothing and twice the average; every fifth is empty.
std::uint64_t uneven_words(int from, int to, std::uint64_t average) {
  const std::uint64_t random =
      mixed(static_cast<std::uint64_t>(from) * 4099 + static_cast<std::uint64_t>(to) + 1);
  return random % 5 == 0 ? 0 : (random >> 8) % (2 * average + 1);
}

// Words of the nth message between two ranks: any other message has others.
word word_of(int from, int to, std::uint64_t nth, std::uint64_t i) {
  const std::uint64_t message =
      mixed((static_cast<std::uint64_t>(from) * 65536 + static_cast<std::uint64_t>(to)) * 64 + nth + 1);
  return static_cast<word>((message + i * 0x9e3779b97f4a7c15U) >> 32);
}

std::vector<word> filled(const std::vector<piece>& pieces, std::uint64_t words, int rank, bool sends) {
  std::vector<word> buffer(words, poison);
  std::map<int, std::uint64_t> met;
  for (const piece& each : pieces) {
    const std::uint64_t nth = met[each.peer]++;
    for (std::uint64_t i = 0; i < each.count; ++i)
      buffer[each.at + i] = sends ? word_of(rank, each.peer, nth, i) : word_of(each.peer, rank, nth, i);
  }
  return buffer;
}

}  // namespace

std::vector<std::string> names() { return {"halo6", "halo26", "transpose", "comd"}; }

plan make(const std::string& name, std::uint64_t bytes, int rank, int size) {
  plan made;
  made.name = name;
  made.size = size;
  const std::uint64_t words = std::max<std::uint64_t>(bytes / sizeof(word), 1);
  if (name == "halo6" || name == "halo26") {
    add_neighbours(made, rank, name == "halo6", words);
    return made;
  }
  made.what = name == "transpose" ? form::alltoall : form::alltoallv;
  for (int peer = 0; peer < size; ++peer) {
    const bool is_even = made.what == form::alltoall;  // which knows no gaps
    append(made.sends, made.send_words, peer, is_even ? words : uneven_words(rank, peer, words));
    append(made.receives, made.receive_words, peer, is_even ? words : uneven_words(peer, rank, words));
    if (!is_even) continue;
    made.send_words -= gap_words;
    made.receive_words -= gap_words;
  }
  return made;
}

std::vector<word> outgoing(const plan& of, int rank) { return filled(of.sends, of.send_words, rank, true); }
std::vector<word> incoming(const plan& of, int rank) {
  return filled(of.receives, of.receive_words, rank, false);
}

}  // namespace patterns
