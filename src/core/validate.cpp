#include "core/validate.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/block_map.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus {
namespace {

// No object is larger than this, so address computations with sizes up to this limit cannot overflow.
constexpr std::uint64_t max_bytes = std::numeric_limits<std::int64_t>::max();

struct byte_range {
  std::uintptr_t begin;
  std::uint64_t bytes;
  std::uintptr_t end() const { return begin + bytes; }
};

bool overlap(const byte_range& a, const byte_range& b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.end() && b.begin < a.end();
}

struct side_names {
  const char* buf;
  const char* counts;
  const char* displs;
};
constexpr side_names send_names{"send_buf", "send_counts", "send_displs"};
constexpr side_names recv_names{"recv_buf", "recv_counts", "recv_displs"};

// The send or receive side of an operation on this rank. `bytes` extends from the first element of the buffer
// to the end of the last block.
struct buffer_side : block_list {
  const side_names& names;
  const void* buf;
  bool is_significant;
  std::uint64_t bytes = 0;

  byte_range span() const { return {reinterpret_cast<std::uintptr_t>(buf), bytes}; }
};

[[noreturn, gnu::cold]] void throw_too_large(const isthmus_operation& operation, const char* argument,
                                             std::uint64_t value) {
  throw invalid_argument(
      ISTHMUS_HERE,
      fmt::format("{}: {} = {} elements of {} do not fit the address space", row_of(operation.collective).name,
                  argument, value, collective_table::datatypes[operation.datatype].name),
      "counts and displacements are elements, not bytes; check for a negative value that became unsigned");
}

[[noreturn, gnu::cold]] void throw_refused_collective(const collective_row& row) {
  throw make_error(
      ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
      fmt::format("{}: collective is not among those that this communicator was created for", row.name),
      "add it to isthmus_communicator_options.collectives, or set that to 0");
}

void check_enumerations(const isthmus_operation& operation, const validation_scope& scope) {
  if (operation.collective < 0 || operation.collective >= ISTHMUS_COLLECTIVE_COUNT)
    throw out_of_range(ISTHMUS_HERE, "collective", static_cast<int>(operation.collective),
                       ISTHMUS_COLLECTIVE_COUNT, "use an ISTHMUS_ collective of types.h");
  const collective_row& row = row_of(operation.collective);
  if (scope.collectives != 0 && (scope.collectives >> operation.collective & 1) == 0)
    throw_refused_collective(row);
  if (operation.datatype < 0 || operation.datatype >= ISTHMUS_DATATYPE_COUNT)
    throw out_of_range(ISTHMUS_HERE, fmt::format("{}: datatype", row.name),
                       static_cast<int>(operation.datatype), ISTHMUS_DATATYPE_COUNT,
                       "use an ISTHMUS_ datatype of types.h");
  if (row.is_reduction && (operation.op < 0 || operation.op >= ISTHMUS_REDUCTION_OP_COUNT))
    throw out_of_range(ISTHMUS_HERE, fmt::format("{}: op", row.name), static_cast<int>(operation.op),
                       ISTHMUS_REDUCTION_OP_COUNT, "use ISTHMUS_SUM, PROD, MIN, MAX or AVG");
}

void check_root(const isthmus_operation& operation, const collective_row& row, const validation_scope& scope) {
  if (row.peer == peer_kind::none) return;
  const char* argument = row.peer == peer_kind::root ? "root" : "peer";
  if (operation.root < 0 || operation.root >= scope.size)
    throw out_of_range(
        ISTHMUS_HERE, fmt::format("{}: {}", row.name, argument), operation.root, scope.size,
        fmt::format("{} is a rank of this communicator, which has {} ranks", argument, scope.size));
  if (row.peer == peer_kind::peer && operation.root == scope.rank && !scope.is_grouped)
    throw make_error(
        ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
        fmt::format("{}: peer = {} is this rank itself, outside a group", row.name, operation.root),
        "put the send and the recv between isthmus_group_start and isthmus_group_end");
}

void check_arrays(const isthmus_operation& operation, const buffer_side& side) {
  const char* missing_array = side.counts == nullptr   ? side.names.counts
                              : side.displs == nullptr ? side.names.displs
                                                       : nullptr;
  if (missing_array != nullptr)
    throw invalid_argument(ISTHMUS_HERE,
                           fmt::format("{}: {} is NULL", row_of(operation.collective).name, missing_array),
                           "it must point to one entry for each rank of the communicator");
}

// Returns the bytes from the start of the buffer to the end of its last non-empty block.
std::uint64_t counts_bytes(const isthmus_operation& operation, const buffer_side& side, int size) {
  check_arrays(operation, side);
  std::uint64_t elements = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (side.counts[rank] == 0) continue;
    std::uint64_t end = 0;
    if (__builtin_add_overflow(side.counts[rank], side.displs[rank], &end))
      throw_too_large(operation,
                      fmt::format("{}[{}] + {}[{}]", side.names.displs, rank, side.names.counts, rank).c_str(),
                      side.counts[rank]);
    elements = std::max(elements, end);
  }
  const auto bytes = checked_product(elements, bytes_of(operation.datatype));
  if (!bytes || *bytes > max_bytes) throw_too_large(operation, side.names.counts, elements);
  return *bytes;
}

std::uint64_t count_bytes(const isthmus_operation& operation, int blocks) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(operation.count, bytes_of(operation.datatype) * static_cast<std::uint64_t>(blocks),
                             &bytes) ||
      bytes > max_bytes)
    throw_too_large(operation, blocks == 1 ? "count" : "count * size", operation.count);
  return bytes;
}

void measure_side(const isthmus_operation& operation, buffer_side& side, int size) {
  switch (side.shape) {
    case extent::nothing: break;
    case extent::count: side.bytes = count_bytes(operation, 1); break;
    case extent::count_x_size: side.bytes = count_bytes(operation, size); break;
    case extent::counts:
      if (side.is_significant) side.bytes = counts_bytes(operation, side, size);
      break;
  }
  if (!side.is_significant) side.bytes = 0;
  if (side.bytes > 0 && side.buf == nullptr)
    throw invalid_argument(ISTHMUS_HERE,
                           fmt::format("{}: {} is NULL but {} bytes of it are used on this rank",
                                       row_of(operation.collective).name, side.names.buf, side.bytes),
                           "pass a buffer, or a count of 0");
  if (side.bytes > 0 && side.span().begin > std::numeric_limits<std::uintptr_t>::max() - side.bytes)
    throw_too_large(operation, side.names.buf, side.bytes);
}

// Returns the non-empty blocks of one side as byte ranges, in address order.
std::vector<byte_range> block_ranges(const isthmus_operation& operation, const buffer_side& side, int size) {
  if (side.shape != extent::counts) return {side.span()};
  const std::uint64_t width = bytes_of(operation.datatype);
  std::vector<byte_range> blocks;
  for (int rank = 0; rank < size; ++rank)
    if (side.length(rank) > 0)
      blocks.push_back({side.span().begin + side.begin(rank) * width, side.length(rank) * width});
  std::sort(blocks.begin(), blocks.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  return blocks;
}

void check_receive_blocks(const isthmus_operation& operation, const buffer_side& recv, int size) {
  if (!recv.is_significant || recv.shape != extent::counts) return;
  bool is_ascending = true;  // common case: one pass, no allocation
  std::uint64_t end = 0;
  for (int rank = 0; rank < size && is_ascending; ++rank) {
    if (recv.counts[rank] == 0) continue;
    is_ascending = recv.displs[rank] >= end;
    end = recv.displs[rank] + recv.counts[rank];
  }
  if (is_ascending) return;
  const auto blocks = block_ranges(operation, recv, size);
  for (std::size_t i = 1; i < blocks.size(); ++i)
    if (overlap(blocks[i - 1], blocks[i]))
      throw invalid_argument(
          ISTHMUS_HERE,
          fmt::format("{}: two receive blocks overlap at byte {} of recv_buf",
                      row_of(operation.collective).name, blocks[i].begin - recv.span().begin),
          "choose recv_displs so that no two blocks of recv_counts[r] elements overlap");
}

// A rank specifies its own block twice (by count and counts[rank], or by two arrays), and both
// sizes must agree.
void check_own_block(const isthmus_operation& operation, const buffer_side& send, const buffer_side& recv,
                     int rank) {
  const char* name = row_of(operation.collective).name;
  const auto compare = [&](const char* array, std::uint64_t in_array, const char* other, std::uint64_t value) {
    if (in_array != value)
      throw invalid_argument(
          ISTHMUS_HERE,
          fmt::format("{}: {}[{}] = {} differs from {} = {}", name, array, rank, in_array, other, value),
          "both describe this rank's own block and must be equal");
  };
  const bool sends_counts = send.is_significant && send.shape == extent::counts;
  const bool receives_counts = recv.is_significant && recv.shape == extent::counts;
  if (sends_counts && receives_counts)
    compare("send_counts", send.counts[rank], "recv_counts[rank]", recv.counts[rank]);
  else if (sends_counts)
    compare("send_counts", send.counts[rank], "count", operation.count);
  else if (receives_counts)
    compare("recv_counts", recv.counts[rank], "count", operation.count);
}

const char* alias_text(const collective_row& row) {
  switch (row.in_place) {
    case alias_rule::never: return "they must not overlap";
    case alias_rule::same:
      return row.send_extent == extent::counts
                 ? "in place means recv_buf == send_buf with equal send and receive arrays"
                 : "in place means recv_buf == send_buf";
    case alias_rule::recv_block: return "in place means send_buf == this rank's own block of recv_buf";
    case alias_rule::send_block: return "in place means recv_buf == this rank's own block of send_buf";
  }
  return "";
}

bool has_overlap(const std::vector<byte_range>& a, const std::vector<byte_range>& b) {
  for (const byte_range& left : a)
    for (const byte_range& right : b)
      if (overlap(left, right)) return true;
  return false;
}

void check_overlap(const isthmus_operation& operation, const buffer_side& send, const buffer_side& recv,
                   const collective_row& row, const validation_scope& scope) {
  if (!overlap(send.span(), recv.span())) return;
  if (is_in_place(operation, block_map(operation, scope.rank, scope.size))) return;
  // The spans of irregular blocks may interleave without sharing a byte.
  if (has_counts(row) &&
      !has_overlap(block_ranges(operation, send, scope.size), block_ranges(operation, recv, scope.size)))
    return;
  throw invalid_argument(ISTHMUS_HERE,
                         fmt::format("{}: send_buf [{}, +{} bytes) and recv_buf [{}, +{} bytes) overlap",
                                     row.name, send.buf, send.bytes, recv.buf, recv.bytes),
                         fmt::format("{}; any other overlap is an error", alias_text(row)));
}

void check_stream(const isthmus_operation& operation, const collective_row& row,
                  const validation_scope& scope) {
  if (scope.platform == ISTHMUS_PLATFORM_HOST && operation.stream != nullptr)
    throw invalid_argument(
        ISTHMUS_HERE,
        fmt::format("{}: stream = {} must be NULL on the host platform", row.name, operation.stream),
        "host calls block until this rank's part is complete; create the communicator on a device to use "
        "streams");
}

void check_product(const isthmus_operation& operation) {
  const isthmus_product& product = *operation.product;
  const auto check = [&](bool is_valid, const std::string& problem, const char* hint) {
    if (!is_valid) throw invalid_argument(ISTHMUS_HERE, "enqueue: product: " + problem, hint);
  };
  constexpr std::uint64_t max_extent = std::numeric_limits<std::int32_t>::max();
  const bool is_sum = operation.collective == ISTHMUS_ALLREDUCE && operation.op == ISTHMUS_SUM &&
                      operation.rmsnorm == nullptr &&
                      (operation.datatype == ISTHMUS_FLOAT16 || operation.datatype == ISTHMUS_BFLOAT16);
  check(is_sum, "the operation must be an allreduce with sum of float16 or bfloat16",
        "set product = NULL for other operations");
  check(product.rows <= ISTHMUS_PRODUCT_MAX_ROWS && product.columns <= max_extent &&
            operation.count == product.rows * product.columns,
        fmt::format("count = {} must be rows = {} times columns = {}, with at most {} rows", operation.count,
                    product.rows, product.columns, static_cast<int>(ISTHMUS_PRODUCT_MAX_ROWS)),
        "use a separate product for more rows");
  check(product.inner <= max_extent && product.lda >= product.inner && product.ldb >= product.inner,
        fmt::format("lda = {} and ldb = {} must be at least inner = {}, which must be at most {}", product.lda,
                    product.ldb, product.inner, max_extent),
        "pass the elements between two rows of A and two columns of B");
  check(operation.count == 0 || product.inner == 0 || (product.a != nullptr && product.b != nullptr),
        "a or b is NULL", "pass both matrices, or inner = 0");
  check(operation.send_buf == operation.recv_buf,
        fmt::format("send_buf = {} must be recv_buf = {}", operation.send_buf, operation.recv_buf),
        "pass the result as both buffers: the product replaces the contribution");
}

}  // namespace

void validate_shape(const isthmus_operation& operation, const validation_scope& scope) {
  check_enumerations(operation, scope);
  check_root(operation, row_of(operation.collective), scope);
}

void validate(const isthmus_operation& operation, const validation_scope& scope) {
  validate_shape(operation, scope);
  const collective_row& row = row_of(operation.collective);
  check_stream(operation, row, scope);
  const bool is_root = operation.root == scope.rank;
  // Call path: the overlap check builds the block maps itself, because no other check needs them.
  buffer_side send{{row.send_extent, operation.count, operation.send_counts, operation.send_displs},
                   send_names,
                   operation.send_buf,
                   uses_buffer(row.send_ranks, is_root)};
  buffer_side recv{{row.recv_extent, operation.count, operation.recv_counts, operation.recv_displs},
                   recv_names,
                   operation.recv_buf,
                   uses_buffer(row.recv_ranks, is_root)};
  measure_side(operation, send, scope.size);
  measure_side(operation, recv, scope.size);
  if (has_counts(row)) {
    check_own_block(operation, send, recv, scope.rank);
    check_receive_blocks(operation, recv, scope.size);
  }
  if (send.is_significant && recv.is_significant) check_overlap(operation, send, recv, row, scope);
  if (operation.product != nullptr) [[unlikely]]
    check_product(operation);
}

}  // namespace isthmus
