// Matrix products on SYCL queues that overlap with the collective before or after them.
//
// The communicator can select any backend, and the caller can enqueue any product (oneMKL or a custom
// kernel). Use this header for devices for which fused.h has no products. fused.h provides products for the
// host, CUDA and HIP.
//
// The caller's product defines the computation: alpha, beta and the layout of B. If each rank has different
// columns of B, it is a column-parallel layer. All datatypes of the collective are supported.
//
// Ordering: on the host platform, calls wait while earlier products still run.
// Determinism: the product is called in the same order every time, so equal inputs give bit-identical results.
// Errors: exceptions of the communicator and of the product propagate; products that were enqueued before
//   may still run.
#ifndef ISTHMUS_SYCL_FUSED_HPP
#define ISTHMUS_SYCL_FUSED_HPP

#include <algorithm>
#include <array>
#include <isthmus/sycl/communicator.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isthmus {

/// Describes the rows that ranks exchange: rows of A in allgather_gemm and of C in gemm_reduce_scatter, dense
/// and row-major. Create the object once and use it for many products.
/// Thread safety: read-only after construction.
class row_shards {
 public:
  /// One chunk: the rows [begin, begin + rows) of the rows of a rank.
  struct row_range {
    std::uint64_t begin, rows;
  };

  /// Compares the shapes of all ranks. Collective; waits on `transfer_queue`. If shapes differ,
  /// all ranks throw.
  /// @param ranks The ranks that exchange rows.
  /// @param transfer_queue A queue of ranks.device(); the host waits for it.
  /// @param rows The number of rows of each rank; equal on all ranks, may be 0.
  /// @param columns The number of elements in a row: k of A or n of C.
  /// @param chunk_count The number of chunks per rank, at most one per row. More chunks give more overlap
  ///   but more calls.
  /// @throws isthmus::exception ISTHMUS_ERROR_MISMATCH names the value that differs; _INVALID_ARGUMENT for 0
  ///   chunks or 2^63 or more elements; _OUT_OF_MEMORY if the device cannot allocate a few bytes.
  row_shards(const communicator& ranks, const sycl::queue& transfer_queue, std::uint64_t rows,
             std::uint64_t columns, std::uint32_t chunk_count = 4)
      : m_rows(rows), m_columns(columns) {
    check_agreement(ranks, transfer_queue, {rows, columns, chunk_count});
    if (chunk_count == 0)
      throw detail::make_exception(
          {.message = "row_shards: chunks = 0 must be at least 1",
           .hint = "use 1 to overlap the whole collective with the product of this rank's rows only"});
    const auto size = static_cast<std::uint64_t>(ranks.size());
    if (columns > 0 && rows > std::numeric_limits<std::int64_t>::max() / size / columns)
      throw detail::make_exception({.message = "row_shards: " + std::to_string(size) + " x " +
                                               std::to_string(rows) + " x " + std::to_string(columns) +
                                               " elements are more than 2^63, the maximum",
                                    .hint = "pass the rows of one rank, not of all ranks"});
    const std::uint64_t count = std::clamp<std::uint64_t>(rows, 1, chunk_count);
    for (std::uint64_t index = 0; index < count; ++index) {
      const std::uint64_t begin = rows * index / count;
      m_chunks.push_back({begin, rows * (index + 1) / count - begin});
    }
  }

  /// Returns the number of rows of each rank.
  std::uint64_t rows() const { return m_rows; }
  /// Returns the number of elements in a row.
  std::uint64_t columns() const { return m_columns; }
  /// Returns the chunks in transfer order; at least one, which may be empty.
  const std::vector<row_range>& chunks() const { return m_chunks; }

 private:
  using shape_fields = std::array<std::uint64_t, 3>;

  static void check_agreement(const communicator& ranks, const sycl::queue& transfer_queue,
                              const shape_fields& own_shape) {
    const auto size = static_cast<std::size_t>(ranks.size());
    sycl::queue queue = transfer_queue;
    const auto release = [&](std::uint64_t* memory) { sycl::free(memory, queue); };
    const std::unique_ptr<std::uint64_t, decltype(release)> shape_memory(
        sycl::malloc_device<std::uint64_t>(own_shape.size() * (size + 1), queue), release);
    if (shape_memory == nullptr)
      throw detail::make_exception(
          {.status = ISTHMUS_ERROR_OUT_OF_MEMORY,
           .message = "row_shards: malloc_device of the " + std::to_string(size) + " ranks' shapes failed",
           .hint = "free device memory before the call"});
    std::uint64_t* all_shapes = shape_memory.get() + own_shape.size();
    queue.memcpy(shape_memory.get(), own_shape.data(), sizeof own_shape).wait();
    ranks.allgather(queue, shape_memory.get(), all_shapes, own_shape.size()).wait();
    std::vector<shape_fields> shapes(size);
    queue.memcpy(shapes.data(), all_shapes, size * sizeof own_shape).wait();
    const char* names[] = {"rows", "columns", "chunks"};
    for (std::size_t field = 0; field < own_shape.size(); ++field)
      for (std::size_t rank = 1; rank < size; ++rank)
        if (shapes[rank][field] != shapes[0][field])
          throw detail::make_exception(
              {.status = ISTHMUS_ERROR_MISMATCH,
               .message = std::string("row_shards: ranks disagree about ") + names[field] + ": rank 0 has " +
                          std::to_string(shapes[0][field]) + ", rank " + std::to_string(rank) + " has " +
                          std::to_string(shapes[rank][field]),
               .hint = "pass equal rows, columns and chunks on all ranks",
               .rank = ranks.rank()});
  }

  std::uint64_t m_rows, m_columns;
  std::vector<row_range> m_chunks;
};

/// C = A * B, where A is gathered from all ranks in chunks. Chunks that have arrived are multiplied while
/// others are transferred.
///
/// Calls `multiply` immediately for this rank's rows and then, for each chunk, for the rows of
/// every other rank:
/// @code
/// sycl::event multiply(const Element* a_rows, std::uint64_t first_row, std::uint64_t rows,
///                      const dependencies&)
/// @endcode
/// It must enqueue C[first_row, first_row + rows) = a_rows[rows x columns] * B after the dependencies, on a
/// queue other than `transfer_queue`, and return the event.
/// @param ranks The communicator; collective.
/// @param transfer_queue The queue for the transfers.
/// @param own_rows This rank's rows of A (USM); may be their final location in `gathered`.
/// @param gathered All of A (USM): size * rows * columns elements, including this rank's rows.
/// @param shape A row_shards object created with the same ranks.
/// @param multiply The product, as above.
/// @param wait_events Events that must complete before `own_rows` is read.
/// @return The events of all operations. When all of them have completed, C and `gathered` are complete and all
///   buffers can be reused.
/// @throws isthmus::exception As allgatherv(), and exceptions of `multiply`; products that were enqueued before
///   may still run.
template <typename Element, typename Multiply>
  requires send_operand<const Element*> && recv_operand<Element*>
std::vector<sycl::event> allgather_gemm(const communicator& ranks, const sycl::queue& transfer_queue,
                                        const Element* own_rows, Element* gathered, const row_shards& shape,
                                        Multiply&& multiply, const dependencies& wait_events = {}) {
  const auto size = static_cast<std::uint64_t>(ranks.size()), rank = static_cast<std::uint64_t>(ranks.rank());
  std::vector<sycl::event> events;
  events.push_back(multiply(own_rows, rank * shape.rows(), shape.rows(), wait_events));
  for (const auto& [begin, rows] : shape.chunks()) {
    const std::vector<std::uint64_t> counts(size, rows * shape.columns());
    std::vector<std::uint64_t> displs(size);
    for (std::uint64_t source = 0; source < size; ++source)
      displs[source] = (source * shape.rows() + begin) * shape.columns();
    const sycl::event gather_event =
        ranks.allgatherv(transfer_queue, own_rows + begin * shape.columns(), rows * shape.columns(), gathered,
                         counts, displs, wait_events);
    events.push_back(gather_event);
    for (std::uint64_t step = 1; step < size; ++step) {
      const std::uint64_t source = (rank + step) % size;
      events.push_back(
          multiply(gathered + displs[source], source * shape.rows() + begin, rows, dependencies{gather_event}));
    }
  }
  return events;
}

/// C = this rank's rows of the sum over ranks of A * B, where each rank has some columns of A and the
/// corresponding rows of B (the row-parallel layer). For each chunk, the products for the rows of all ranks are
/// written to `partial`. They are then summed on `transfer_queue` into `c` while the next chunk is multiplied.
///
/// Calls `multiply` for each chunk and the rows of every rank:
/// @code
/// sycl::event multiply(std::uint64_t first_row, std::uint64_t rows, Element* destination, const dependencies&)
/// @endcode
/// It must enqueue destination[rows x columns] = A[first_row, first_row + rows) * B after the dependencies, on
/// a queue other than `transfer_queue`, and return the event. A value that it adds only to the rows of its own
/// rank (a bias) appears once in the sum.
/// @param ranks The communicator; collective.
/// @param transfer_queue The queue for the sums.
/// @param partial Scratch memory (USM) for size * rows * columns elements; overwritten.
/// @param c This rank's rows of the sum (USM): rows * columns elements.
/// @param shape A row_shards object created with the same ranks.
/// @param multiply The product, as above.
/// @param wait_events Events that the products wait for.
/// @return The events of all operations. When all of them have completed, C is complete and all buffers can be
///   reused. The backend's reduce_scatter determines the rounding of the sums.
/// @throws isthmus::exception As reduce_scatter(), and exceptions of `multiply`; products that were enqueued
///   before may still run.
template <typename Element, typename Multiply>
  requires recv_operand<Element*> && reducible_operand<Element*>
std::vector<sycl::event> gemm_reduce_scatter(const communicator& ranks, const sycl::queue& transfer_queue,
                                             Element* partial, Element* c, const row_shards& shape,
                                             Multiply&& multiply, const dependencies& wait_events = {}) {
  const auto size = static_cast<std::uint64_t>(ranks.size());
  const auto& chunks = shape.chunks();
  const auto chunk_partial = [&](const row_shards::row_range& chunk) {
    return partial + size * chunk.begin * shape.columns();
  };
  const auto multiply_chunk = [&](const row_shards::row_range& chunk) {
    dependencies events;
    for (std::uint64_t target = 0; target < size; ++target)
      events.push_back(multiply(target * shape.rows() + chunk.begin, chunk.rows,
                                chunk_partial(chunk) + target * chunk.rows * shape.columns(), wait_events));
    return events;
  };
  std::vector<sycl::event> events;
  dependencies product_events = multiply_chunk(chunks.front());
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    // Submit the next products first, because reduce_scatter may wait for the products that it depends on.
    dependencies next_product_events =
        index + 1 < chunks.size() ? multiply_chunk(chunks[index + 1]) : dependencies{};
    const auto& chunk = chunks[index];
    events.push_back(ranks.reduce_scatter(transfer_queue, chunk_partial(chunk),
                                          c + chunk.begin * shape.columns(), chunk.rows * shape.columns(),
                                          reduction_op::sum, product_events));
    product_events = std::move(next_product_events);
  }
  return events;
}

}  // namespace isthmus

#endif
