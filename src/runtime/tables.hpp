// THE TABLE as constexpr rows, and the sizes that follow from it.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstdint>
#include <optional>

namespace isthmus {

enum class peer_kind : std::uint8_t { none, root, peer };
enum class site : std::uint8_t { nowhere, root, all };
enum class extent : std::uint8_t { nothing, count, count_x_size, counts };
enum class alias_rule : std::uint8_t { never, same, recv_block, send_block };

struct collective_row {
  const char* name;
  peer_kind peer;
  bool reduces;
  site send_at;
  extent send_extent;
  site recv_at;
  extent recv_extent;
  alias_rule in_place;
};

struct datatype_row {
  const char* name;
  std::uint8_t bytes;
};

namespace table_words {  // the words of collectives.def, so that each row is a plain expansion
inline constexpr auto PEER_NONE = peer_kind::none, PEER_ROOT = peer_kind::root, PEER_PEER = peer_kind::peer;
inline constexpr auto AT_NOWHERE = site::nowhere, AT_ROOT = site::root, AT_ALL = site::all;
inline constexpr auto EXTENT_NOTHING = extent::nothing, EXTENT_COUNT = extent::count,
                      EXTENT_COUNT_X_SIZE = extent::count_x_size, EXTENT_COUNTS = extent::counts;
inline constexpr auto ALIAS_NEVER = alias_rule::never, ALIAS_SAME = alias_rule::same,
                      ALIAS_RECV_BLOCK = alias_rule::recv_block, ALIAS_SEND_BLOCK = alias_rule::send_block;

inline constexpr std::array<collective_row, ISTHMUS_COLLECTIVE_COUNT> rows{{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_at, send_extent, recv_at, recv_extent, in_place) \
  {#name,        PEER_##peer,          reduces != 0,    AT_##send_at, EXTENT_##send_extent,                 \
   AT_##recv_at, EXTENT_##recv_extent, ALIAS_##in_place},
#include <isthmus/collectives.def>
}};

inline constexpr std::array<datatype_row, ISTHMUS_DATATYPE_COUNT> datatypes{{
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) {#name, bytes},
#include <isthmus/collectives.def>
}};
}  // namespace table_words

// Precondition of both: the value is in range.
constexpr const collective_row& row_of(isthmus_collective collective) {
  return table_words::rows[static_cast<std::size_t>(collective)];
}
constexpr std::uint64_t bytes_of(isthmus_datatype datatype) {
  return table_words::datatypes[static_cast<std::size_t>(datatype)].bytes;
}

constexpr bool is_at(site where, bool is_root) {
  return where == site::all || (where == site::root && is_root);
}

// a * b, or nothing when it does not fit.
constexpr std::optional<std::uint64_t> checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The size by which a rule selects: what nccl-tests calls size, but for allgather the bytes per rank
// (allgatherv: their mean). Nothing where only some ranks know it. Precondition: a validated operation.
std::optional<std::uint64_t> selection_bytes(const isthmus_operation& operation, int size);

// The operation as all ranks agree on it: no pointers, no counts that only one rank knows. It is what
// backends are asked to support.
isthmus_operation agreed_operation(const isthmus_operation& operation, int size);

}  // namespace isthmus
