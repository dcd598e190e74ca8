#include "test_case.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <charconv>
#include <stdexcept>

namespace conformance {
namespace {

enum class peer_category { NONE, ROOT, PEER };
enum class alias { NEVER, SAME, RECV_BLOCK, SEND_BLOCK };

struct row {
  const char* name;
  peer_category peer_role;
  bool reduces;
  alias in_place;
};

constexpr row rows[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer_kind, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                         \
  {#name, peer_category::peer_kind, reduces != 0, alias::in_place},
#include <isthmus/collectives.def>
};

// A permutation of the ranks, so that blocks are not always in rank order.
std::vector<int> order_of(std::uint64_t seed, int size) {
  std::vector<int> order(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) order[r] = r;
  for (int r = size - 1; r > 0; --r)
    std::swap(order[r], order[oracle::mix(seed, 77, r) % static_cast<std::uint64_t>(r + 1)]);
  return order;
}

// Lays blocks out with gaps of 0 to 3 elements.
void place(oracle::block_layout& parts, std::uint64_t seed) {
  const int size = static_cast<int>(parts.counts.size());
  parts.displs.assign(parts.counts.size(), 0);
  std::uint64_t offset = oracle::mix(seed, 88) % 4;
  for (const int r : order_of(seed, size)) {
    parts.displs[r] = offset;
    offset += parts.counts[r] + oracle::mix(seed, 99, r) % 4;
  }
}

// Between 0 and `count` elements; every fifth block is empty and every fifth is full.
std::uint64_t uneven(std::uint64_t seed, std::uint64_t count, int from, int to) {
  const std::uint64_t draw = oracle::mix(seed, 1000 + from, to);
  if (draw % 5 == 0) return 0;
  if (draw % 5 == 1) return count;
  return (draw >> 8) % (count + 1);
}

std::vector<oracle::block_layout> equal_blocks(const test_case& test, int size) {
  oracle::block_layout parts;
  for (int r = 0; r < size; ++r) parts.counts.push_back(uneven(test.seed, test.count, 0, r));
  place(parts, test.seed);
  return std::vector<oracle::block_layout>(static_cast<std::size_t>(size), parts);
}

void fill_alltoallv(const test_case& test, oracle::operation_shape& shape) {
  const int n = shape.size;
  // In place, the block from rank a to b has the same length and position as the block from b to a.
  const auto count = [&](int from, int to) {
    return test.in_place ? uneven(test.seed, test.count, std::min(from, to), std::max(from, to))
                         : uneven(test.seed, test.count, from, to);
  };
  shape.send_layouts.resize(static_cast<std::size_t>(n));
  shape.recv_layouts.resize(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) {
    for (int other = 0; other < n; ++other) {
      shape.send_layouts[r].counts.push_back(count(r, other));
      shape.recv_layouts[r].counts.push_back(count(other, r));
    }
    place(shape.send_layouts[r], test.seed + static_cast<std::uint64_t>(r));
    place(shape.recv_layouts[r], test.seed + static_cast<std::uint64_t>(test.in_place ? r : r + n));
  }
}

template <typename Names>
int find_name(std::string_view field_name, std::string_view text, int end, Names name) {
  for (int value = 0; value < end; ++value)
    if (text == name(value)) return value;
  throw std::invalid_argument(fmt::format("unknown {} \"{}\"", field_name, text));
}

std::uint64_t parse_number(std::string_view key, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size())
    throw std::invalid_argument(fmt::format("{}=\"{}\" is not a number", key, text));
  return value;
}

void parse_field(test_case& test, std::string_view field) {
  const auto equals = field.find('=');
  if (equals == std::string_view::npos)
    throw std::invalid_argument(fmt::format("\"{}\" is not KEY=VALUE", field));
  const std::string_view key = field.substr(0, equals);
  const std::uint64_t value = parse_number(key, field.substr(equals + 1));
  if (key == "count") {
    test.count = value;
  } else if (key == "root") {
    test.root = static_cast<int>(value);
  } else if (key == "in_place") {
    test.in_place = value != 0;
  } else if (key == "heap") {
    test.heap = value != 0;
  } else if (key == "special") {
    test.special = value != 0;
  } else if (key == "seed") {
    test.seed = value;
  } else {
    throw std::invalid_argument(fmt::format("unknown field \"{}\"", key));
  }
}

}  // namespace

bool reduces(isthmus_collective collective) { return rows[collective].reduces; }
bool has_root(isthmus_collective collective) { return rows[collective].peer_role != peer_category::NONE; }
bool can_be_in_place(isthmus_collective collective) { return rows[collective].in_place != alias::NEVER; }
const char* name_of(isthmus_collective collective) { return rows[collective].name; }

std::vector<isthmus_collective> collectives() {
  std::vector<isthmus_collective> all;
  for (int value = 0; value < ISTHMUS_COLLECTIVE_COUNT; ++value)
    if (value != ISTHMUS_RECV) all.push_back(static_cast<isthmus_collective>(value));
  return all;
}

std::string to_string(const test_case& test) {
  return fmt::format("{}/{}/{}/count={}/root={}/in_place={:d}/heap={:d}/special={:d}/seed={}",
                     name_of(test.collective), isthmus_datatype_name(test.datatype),
                     isthmus_reduction_op_name(test.op), test.count, test.root, test.in_place, test.heap,
                     test.special, test.seed);
}

test_case parse(std::string_view text) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto slash = text.find('/');
    fields.push_back(text.substr(0, slash));
    if (slash == std::string_view::npos) break;
    text.remove_prefix(slash + 1);
  }
  if (fields.size() < 3) throw std::invalid_argument("expected COLLECTIVE/DATATYPE/OP/KEY=VALUE/...");
  test_case test;
  test.collective = static_cast<isthmus_collective>(
      find_name("collective", fields[0], ISTHMUS_COLLECTIVE_COUNT, [](int value) { return rows[value].name; }));
  test.datatype =
      static_cast<isthmus_datatype>(find_name("datatype", fields[1], ISTHMUS_DATATYPE_COUNT, [](int value) {
        return isthmus_datatype_name(static_cast<isthmus_datatype>(value));
      }));
  test.op = static_cast<isthmus_reduction_op>(
      find_name("reduction operation", fields[2], ISTHMUS_REDUCTION_OP_COUNT,
                [](int value) { return isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(value)); }));
  for (std::size_t i = 3; i < fields.size(); ++i) parse_field(test, fields[i]);
  return test;
}

oracle::operation_shape shape_of(const test_case& test, int size) {
  oracle::operation_shape shape{test.collective, size, test.root % size, test.count, {}, {}};
  switch (test.collective) {
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHERV: shape.recv_layouts = equal_blocks(test, size); break;
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV: shape.send_layouts = equal_blocks(test, size); break;
    case ISTHMUS_ALLTOALLV: fill_alltoallv(test, shape); break;
    default: break;
  }
  return shape;
}

oracle::input_spec source_of(const test_case& test) {
  return {test.datatype, test.op, test.special ? oracle::input_class::special : oracle::input_class::ordinary,
          test.seed};
}

}  // namespace conformance
