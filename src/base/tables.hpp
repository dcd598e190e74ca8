// The collective table (collectives.def) as constexpr rows, and functions that interpret the rows.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstdint>
#include <optional>

namespace isthmus {

enum class peer_kind : std::uint8_t { none, root, peer };
enum class buffer_ranks : std::uint8_t { none, root, all };
enum class extent : std::uint8_t { nothing, count, count_x_size, counts };
enum class alias_rule : std::uint8_t { never, same, recv_block, send_block };

struct collective_row {
  const char* name;
  peer_kind peer;
  bool is_reduction;
  buffer_ranks send_ranks;
  extent send_extent;
  buffer_ranks recv_ranks;
  extent recv_extent;
  alias_rule in_place;
};

struct datatype_row {
  const char* name;
  std::uint8_t bytes;
  bool is_floating_point;
};

namespace collective_table {  // defines the words of collectives.def
inline constexpr bool KIND_SIGNED = false, KIND_UNSIGNED = false, KIND_FLOATING = true;
inline constexpr auto PEER_NONE = peer_kind::none, PEER_ROOT = peer_kind::root, PEER_PEER = peer_kind::peer;
inline constexpr auto RANKS_NONE = buffer_ranks::none, RANKS_ROOT = buffer_ranks::root,
                      RANKS_ALL = buffer_ranks::all;
inline constexpr auto EXTENT_NOTHING = extent::nothing, EXTENT_COUNT = extent::count,
                      EXTENT_COUNT_X_SIZE = extent::count_x_size, EXTENT_COUNTS = extent::counts;
inline constexpr auto ALIAS_NEVER = alias_rule::never, ALIAS_SAME = alias_rule::same,
                      ALIAS_RECV_BLOCK = alias_rule::recv_block, ALIAS_SEND_BLOCK = alias_rule::send_block;

inline constexpr std::array<collective_row, ISTHMUS_COLLECTIVE_COUNT> rows{{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {#name,                                                                                               \
   PEER_##peer,                                                                                         \
   reduces != 0,                                                                                        \
   RANKS_##send_ranks,                                                                                  \
   EXTENT_##send_extent,                                                                                \
   RANKS_##recv_ranks,                                                                                  \
   EXTENT_##recv_extent,                                                                                \
   ALIAS_##in_place},
#include <isthmus/collectives.def>
}};

inline constexpr std::array<datatype_row, ISTHMUS_DATATYPE_COUNT> datatypes{{
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) {#name, bytes, KIND_##kind},
#include <isthmus/collectives.def>
}};

inline constexpr std::array<const char*, ISTHMUS_REDUCTION_OP_COUNT> op_names{
#define ISTHMUS_REDUCTION_OP(name, NAME) #name,
#include <isthmus/collectives.def>
};
inline constexpr std::array<const char*, ISTHMUS_PLATFORM_COUNT> platform_names{
#define ISTHMUS_PLATFORM(name, NAME) #name,
#include <isthmus/collectives.def>
};
}  // namespace collective_table

// Precondition of these functions: the value is in range.
constexpr const collective_row& row_of(isthmus_collective collective) {
  return collective_table::rows[static_cast<std::size_t>(collective)];
}
constexpr std::uint64_t bytes_of(isthmus_datatype datatype) {
  return collective_table::datatypes[static_cast<std::size_t>(datatype)].bytes;
}

constexpr bool is_floating(isthmus_datatype datatype) {
  return collective_table::datatypes[static_cast<std::size_t>(datatype)].is_floating_point;
}

constexpr bool is_point_to_point(isthmus_collective collective) {
  return row_of(collective).peer == peer_kind::peer;
}

// Returns true if blocks can differ in length.
constexpr bool has_counts(const collective_row& row) {
  return row.send_extent == extent::counts || row.recv_extent == extent::counts;
}
// Returns true if only the sender and the receiver of a block know its length. Otherwise all ranks pass
// the same arrays.
constexpr bool has_private_counts(const collective_row& row) {
  if (row.send_extent == extent::counts) return !row.is_reduction;
  return row.recv_extent == extent::counts && row.recv_ranks != buffer_ranks::all;
}
// Returns the count array that all ranks know. Returns NULL if only some ranks know it, or if a caller of
// explain omitted it.
constexpr const std::uint64_t* shared_counts(const isthmus_operation& operation) {
  const collective_row& row = row_of(operation.collective);
  if (!has_counts(row) || has_private_counts(row)) return nullptr;
  return row.send_extent == extent::counts ? operation.send_counts : operation.recv_counts;
}
// Returns true if all ranks pass the same count, so that a call with count 0 does nothing on any rank.
constexpr bool has_equal_count(const collective_row& row) {
  return !has_counts(row) && (row.send_extent != extent::nothing || row.recv_extent != extent::nothing);
}

constexpr bool uses_buffer(buffer_ranks ranks, bool is_root) {
  return ranks == buffer_ranks::all || (ranks == buffer_ranks::root && is_root);
}

// Returns a * b, or nullopt on overflow.
constexpr std::optional<std::uint64_t> checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Returns the mean block length in elements, rounded up. The result is the same on all ranks, because all ranks
// know all counts.
inline std::uint64_t mean_count(const isthmus_operation& operation, int size) {
  const std::uint64_t* const counts = shared_counts(operation);
  if (counts == nullptr) return operation.count;  // explain() was called without count arrays
  std::uint64_t total = 0;
  for (int rank = 0; rank < size; ++rank) total += counts[rank];
  const auto ranks = static_cast<std::uint64_t>(size);
  return total / ranks + (total % ranks != 0 ? 1 : 0);
}

// Returns the size in bytes that rules match: the size as defined by nccl-tests, except that allgather counts
// the bytes per rank (allgatherv: their mean). Returns nullopt if only some ranks know the size. Precondition:
// the operation has been validated.
inline std::optional<std::uint64_t> selection_bytes(const isthmus_operation& operation, int size) {
  const collective_row& row = row_of(operation.collective);
  if (has_private_counts(row)) return std::nullopt;
  const std::uint64_t width = bytes_of(operation.datatype);
  if (!has_counts(row) && !has_equal_count(row)) return 0;  // barrier
  // Allgather counts the contribution of one rank.
  const bool spans_all_ranks =
      row.send_extent == extent::count_x_size || row.send_extent == extent::counts ||
      (row.recv_extent == extent::count_x_size && row.recv_ranks == buffer_ranks::root);
  const std::uint64_t count = has_counts(row) ? mean_count(operation, size) : operation.count;
  return count * width * (spans_all_ranks ? static_cast<std::uint64_t>(size) : 1);
}

// Returns the part of the operation that is identical on all ranks, without buffers and private counts. The pointers of
// `rmsnorm` and `product` differ between ranks. Backends use the result to decide whether they support the operation.
inline isthmus_operation agreed_operation(const isthmus_operation& operation, int size) {
  isthmus_operation result{};
  result.collective = operation.collective;
  result.datatype = operation.datatype;
  result.rmsnorm = operation.rmsnorm;
  result.product = operation.product;
  const collective_row& row = row_of(operation.collective);
  if (row.is_reduction) result.op = operation.op;
  if (row.peer != peer_kind::none) result.root = operation.root;
  if (!has_counts(row)) result.count = operation.count;
  if (has_counts(row) && !has_private_counts(row)) result.count = mean_count(operation, size);
  return result;
}

}  // namespace isthmus
