// Products on SYCL queues fused with the collective that feeds or follows them: any backend that the
// communicator chooses, any product that the caller enqueues (oneMKL, a kernel of its own), so also on devices
// for which fused.h has no products. fused.h does the same with products of its own on the host, on CUDA and on
// HIP.
//
// The caller's product decides what is computed: alpha, beta, the layout of B, and with columns of B of its own
// on every rank the column-parallel layer. Types may be any that the collective takes. Calls that wait (the
// host platform) do so while the products before still run. The calls of the caller's product come in the same
// order every time, so the same inputs give the same bits. Throws what the communicator and the product throw;
// products that were enqueued before that may still run.
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

/// The rows that travel: of A in allgather_gemm, of C in gemm_reduce_scatter; dense and row-major. Made once
/// and used for many products; afterwards only read, so by any thread.
class row_shards {
 public:
  /// Rows [begin, begin + rows) of a rank's own rows, which travel together.
  struct row_range {
    std::uint64_t begin, rows;
  };

  /// Collective, and waits on `transfer_queue`: ranks compare their shapes, and all get the error where they differ.
  /// @param ranks The ranks that the rows travel between.
  /// @param transfer_queue A queue of ranks.device(); the host waits for it.
  /// @param rows Rows of each rank, equal on all; 0 is allowed.
  /// @param columns Elements of a row: A's k or C's n.
  /// @param chunks Pieces that each rank's rows travel in, at most one for each row: more overlap, more calls.
  /// @throws isthmus::exception ISTHMUS_ERROR_MISMATCH names what ranks disagree about; _INVALID_ARGUMENT for 0
  ///   chunks or 2^63 elements and more; _OUT_OF_MEMORY without a few bytes of the device.
  row_shards(const communicator& ranks, const sycl::queue& transfer_queue, std::uint64_t rows, std::uint64_t columns,
             std::uint32_t chunk_count = 4)
      : m_rows(rows), m_columns(columns) {
    check_agreement(ranks, transfer_queue, {rows, columns, chunk_count});
    if (chunk_count == 0)
      throw detail::make_exception({.message = "row_shards: chunks = 0 must be at least 1",
                                    .hint = "1 is the whole collective beside the product of the own rows"});
    const auto size = static_cast<std::uint64_t>(ranks.size());
    if (columns > 0 && rows > std::numeric_limits<std::int64_t>::max() / size / columns)
      throw detail::make_exception({.message = "row_shards: " + std::to_string(size) + " x " +
                                               std::to_string(rows) + " x " + std::to_string(columns) +
                                               " elements are more than 2^63",
                                    .hint = "rows are those of one rank"});
    const std::uint64_t count = std::clamp<std::uint64_t>(rows, 1, chunk_count);
    for (std::uint64_t index = 0; index < count; ++index) {
      const std::uint64_t begin = rows * index / count;
      m_chunks.push_back({begin, rows * (index + 1) / count - begin});
    }
  }

  /// Rows of each rank.
  std::uint64_t rows() const { return m_rows; }
  /// Elements of a row.
  std::uint64_t columns() const { return m_columns; }
  /// In the order in which they travel; at least one, which may be empty.
  const std::vector<row_range>& chunks() const { return m_chunks; }

 private:
  using shape_fields = std::array<std::uint64_t, 3>;

  static void check_agreement(const communicator& ranks, const sycl::queue& transfer_queue, const shape_fields& own) {
    const auto size = static_cast<std::size_t>(ranks.size());
    sycl::queue queue = transfer_queue;
    const auto release = [&](std::uint64_t* memory) { sycl::free(memory, queue); };
    const std::unique_ptr<std::uint64_t, decltype(release)> shape_memory(
        sycl::malloc_device<std::uint64_t>(own.size() * (size + 1), queue), release);
    if (shape_memory == nullptr)
      throw detail::make_exception(
          {.status = ISTHMUS_ERROR_OUT_OF_MEMORY,
           .message = "row_shards: the device has no memory for the shapes of the ranks"});
    std::uint64_t* all_shapes = shape_memory.get() + own.size();
    queue.memcpy(shape_memory.get(), own.data(), sizeof own).wait();
    ranks.allgather(queue, shape_memory.get(), all_shapes, own.size()).wait();
    std::vector<shape_fields> shapes(size);
    queue.memcpy(shapes.data(), all_shapes, size * sizeof own).wait();
    const char* names[] = {"rows", "columns", "chunks"};
    for (std::size_t field = 0; field < own.size(); ++field)
      for (std::size_t rank = 1; rank < size; ++rank)
        if (shapes[rank][field] != shapes[0][field])
          throw detail::make_exception(
              {.status = ISTHMUS_ERROR_MISMATCH,
               .message = std::string("row_shards: ranks disagree about ") + names[field] + ": rank 0 has " +
                          std::to_string(shapes[0][field]) + ", rank " + std::to_string(rank) + " has " +
                          std::to_string(shapes[rank][field]),
               .hint = "every rank has as many rows of as many elements; what else the "
                       "product needs may differ",
               .rank = ranks.rank()});
  }

  std::uint64_t m_rows, m_columns;
  std::vector<row_range> m_chunks;
};

/// C = A * B with A gathered from `own` of all ranks, chunk by chunk, while chunks that have arrived are
/// multiplied.
///
/// For the own rows at once, then for each chunk for the rows of every other rank, it calls
/// @code
/// sycl::event multiply(const Element* rows_of_a, std::uint64_t first_row, std::uint64_t rows, const dependencies&)
/// @endcode
/// which enqueues C[first_row, first_row + rows) = from[rows x columns] * B after the dependencies, on a queue
/// other than `transfer_queue`, and returns its event.
/// @param ranks The communicator; collective.
/// @param transfer_queue The queue that rows travel on.
/// @param own_rows This rank's rows of A, USM; may lie in their place in `gathered`.
/// @param gathered The whole A, USM: size * rows * columns elements, own rows too.
/// @param shape From row_shards, made with the same ranks.
/// @param multiply The product, as above.
/// @param wait_events Events that `own` is ready after.
/// @return Events after which C and `gathered` are complete, and every buffer may be used again.
/// @throws isthmus::exception What allgatherv throws, and whatever `multiply` throws; products that were
///   enqueued before may still run.
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
    const sycl::event gathered_event = ranks.allgatherv(transfer_queue, own_rows + begin * shape.columns(),
                                                 rows * shape.columns(), gathered, counts, displs, wait_events);
    events.push_back(gathered_event);
    for (std::uint64_t step = 1; step < size; ++step) {
      const std::uint64_t source = (rank + step) % size;
      events.push_back(
          multiply(gathered + displs[source], source * shape.rows() + begin, rows, dependencies{gathered_event}));
    }
  }
  return events;
}

/// C = this rank's rows of the sum over ranks of A * B, where every rank has its columns of A and rows of B
/// (the row-parallel layer). A chunk of every rank's rows is multiplied into `partial`, then summed on
/// `transfer_queue` into `c` while the next one is multiplied.
///
/// For each chunk and the rows of every rank it calls
/// @code
/// sycl::event multiply(std::uint64_t first_row, std::uint64_t rows, Element* destination, const dependencies&)
/// @endcode
/// which enqueues to[rows x columns] = A[first_row, first_row + rows) * B after the dependencies, on a queue
/// other than `transfer_queue`, and returns its event; what it adds to its own rank's rows is in the sum once (a
/// bias).
/// @param ranks The communicator; collective.
/// @param transfer_queue The queue that rows are summed on.
/// @param partial USM for size * rows * columns elements; overwritten.
/// @param c This rank's rows of the sum, USM: rows * columns elements.
/// @param shape From row_shards, made with the same ranks.
/// @param multiply The product, as above.
/// @param wait_events Events that the products wait for.
/// @return Events after which C is complete, and every buffer may be used again. Sums are rounded as the
///   backend's reduce_scatter rounds.
/// @throws isthmus::exception What reduce_scatter throws, and whatever `multiply` throws; products that were
///   enqueued before may still run.
template <typename Element, typename Multiply>
  requires recv_operand<Element*> && reducible_operand<Element*>
std::vector<sycl::event> gemm_reduce_scatter(const communicator& ranks, const sycl::queue& transfer_queue,
                                             Element* partial, Element* c, const row_shards& shape,
                                             Multiply&& multiply, const dependencies& wait_events = {}) {
  const auto size = static_cast<std::uint64_t>(ranks.size());
  const auto& chunks = shape.chunks();
  const auto partial_of = [&](const row_shards::row_range& chunk) {
    return partial + size * chunk.begin * shape.columns();
  };
  const auto multiply_chunk = [&](const row_shards::row_range& chunk) {
    dependencies events;
    for (std::uint64_t target = 0; target < size; ++target)
      events.push_back(multiply(target * shape.rows() + chunk.begin, chunk.rows,
                              partial_of(chunk) + target * chunk.rows * shape.columns(), wait_events));
    return events;
  };
  std::vector<sycl::event> events;
  dependencies product_events = multiply_chunk(chunks.front());
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    // First, because the sum's call may wait for the products that it depends on.
    dependencies next = index + 1 < chunks.size() ? multiply_chunk(chunks[index + 1]) : dependencies{};
    const auto& chunk = chunks[index];
    events.push_back(ranks.reduce_scatter(transfer_queue, partial_of(chunk), c + chunk.begin * shape.columns(),
                                          chunk.rows * shape.columns(), reduction_op::sum, product_events));
    product_events = std::move(next);
  }
  return events;
}

}  // namespace isthmus

#endif
