#include "plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>

namespace patterns {
namespace {

// Untouched words between pieces, which reveal messages that are too long.
constexpr std::uint64_t gap_words = 3;

using grid_position = std::array<int, 3>;

// Arranges the ranks in a box that is as close to a cube as possible.
grid_position sides_of(int size) {
  grid_position sides{1, 1, 1};
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

int neighbor_of(int rank, const grid_position& sides, const grid_position& direction) {
  const grid_position own{rank % sides[0], rank / sides[0] % sides[1], rank / sides[0] / sides[1]};
  grid_position to{};
  for (std::size_t axis = 0; axis < 3; ++axis)
    to[axis] = (own[axis] + direction[axis] + sides[axis]) % sides[axis];
  return (to[2] * sides[1] + to[1]) * sides[0] + to[0];
}

void append(std::vector<segment>& segments, std::uint64_t& end, int peer, std::uint64_t count) {
  segments.push_back({peer, end, count});
  end += count + gap_words;
}

// Sends in each direction and receives from the opposite one, so that both lists have the same order.
void add_neighbors(exchange_plan& plan, int rank, bool faces_only, std::uint64_t face_words) {
  const grid_position sides = sides_of(plan.size);
  const auto edge_words = static_cast<std::uint64_t>(std::lround(std::sqrt(static_cast<double>(face_words))));
  const std::uint64_t words_by_axes[] = {0, face_words, edge_words, 1};
  for (int code = 0; code < 27; ++code) {
    const grid_position to{code % 3 - 1, code / 3 % 3 - 1, code / 9 - 1};
    const auto axes = static_cast<std::size_t>(std::abs(to[0]) + std::abs(to[1]) + std::abs(to[2]));
    if (axes == 0 || (faces_only && axes > 1)) continue;
    append(plan.sends, plan.send_words, neighbor_of(rank, sides, to), words_by_axes[axes]);
    const grid_position from{-to[0], -to[1], -to[2]};
    append(plan.receives, plan.receive_words, neighbor_of(rank, sides, from), words_by_axes[axes]);
  }
}

std::uint64_t hash(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccdU;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53U;
  return value ^ (value >> 33);
}

// Between zero and twice the average; every fifth is empty.
std::uint64_t uneven_words(int from, int to, std::uint64_t average) {
  const std::uint64_t random =
      hash(static_cast<std::uint64_t>(from) * 4099 + static_cast<std::uint64_t>(to) + 1);
  return random % 5 == 0 ? 0 : (random >> 8) % (2 * average + 1);
}

// Content of the nth message between two ranks; differs for every message.
word word_of(int from, int to, std::uint64_t nth, std::uint64_t i) {
  const std::uint64_t message =
      hash((static_cast<std::uint64_t>(from) * 65536 + static_cast<std::uint64_t>(to)) * 64 + nth + 1);
  return static_cast<word>((message + i * 0x9e3779b97f4a7c15U) >> 32);
}

std::vector<word> filled(const std::vector<segment>& segments, std::uint64_t words, int rank, bool sends) {
  std::vector<word> buffer(words, poison);
  std::map<int, std::uint64_t> message_counts;
  for (const segment& each : segments) {
    const std::uint64_t nth = message_counts[each.peer]++;
    for (std::uint64_t i = 0; i < each.count; ++i)
      buffer[each.offset + i] = sends ? word_of(rank, each.peer, nth, i) : word_of(each.peer, rank, nth, i);
  }
  return buffer;
}

}  // namespace

std::vector<std::string> names() { return {"halo6", "halo26", "transpose", "comd"}; }

exchange_plan make_plan(const std::string& name, std::uint64_t bytes, int rank, int size) {
  exchange_plan plan;
  plan.name = name;
  plan.size = size;
  const std::uint64_t words = std::max<std::uint64_t>(bytes / sizeof(word), 1);
  if (name == "halo6" || name == "halo26") {
    add_neighbors(plan, rank, name == "halo6", words);
    return plan;
  }
  plan.form = name == "transpose" ? exchange_form::alltoall : exchange_form::alltoallv;
  for (int peer = 0; peer < size; ++peer) {
    const bool is_even = plan.form == exchange_form::alltoall;  // which has no gaps
    append(plan.sends, plan.send_words, peer, is_even ? words : uneven_words(rank, peer, words));
    append(plan.receives, plan.receive_words, peer, is_even ? words : uneven_words(peer, rank, words));
    if (!is_even) continue;
    plan.send_words -= gap_words;
    plan.receive_words -= gap_words;
  }
  return plan;
}

std::vector<word> outgoing(const exchange_plan& plan, int rank) {
  return filled(plan.sends, plan.send_words, rank, true);
}
std::vector<word> incoming(const exchange_plan& plan, int rank) {
  return filled(plan.receives, plan.receive_words, rank, false);
}

}  // namespace patterns
