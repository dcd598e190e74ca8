#include "base/tables.hpp"

namespace isthmus {

std::uint64_t mean_count(const isthmus_operation& operation, int size) {
  const std::uint64_t* const counts = shared_counts(operation);
  if (counts == nullptr) return operation.count;  // explain() was called without count arrays
  std::uint64_t total = 0;
  for (int rank = 0; rank < size; ++rank) total += counts[rank];
  const auto ranks = static_cast<std::uint64_t>(size);
  return total / ranks + (total % ranks != 0 ? 1 : 0);
}

isthmus_operation agreed_operation(const isthmus_operation& operation, int size) {
  isthmus_operation result{};
  result.collective = operation.collective;
  result.datatype = operation.datatype;
  const collective_row& row = row_of(operation.collective);
  if (row.is_reduction) result.op = operation.op;
  if (row.peer != peer_kind::none) result.root = operation.root;
  if (!has_counts(row)) result.count = operation.count;
  if (has_counts(row) && !has_private_counts(row)) result.count = mean_count(operation, size);
  return result;
}

}  // namespace isthmus
