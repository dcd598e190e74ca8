// Products on SYCL queues fused with the gather that feeds them: any backend that the communicator chooses, any
// product that the caller enqueues (oneMKL, a kernel of its own). fused.h does the same with products of its
// own on the host and on CUDA.
#ifndef ISTHMUS_SYCL_FUSED_HPP
#define ISTHMUS_SYCL_FUSED_HPP

#include <algorithm>
#include <isthmus/sycl/communicator.hpp>
#include <utility>
#include <vector>

namespace isthmus {

// A[size*rows x k], dense and row-major, of which every rank has rows x k.
struct row_shards {
  std::uint64_t rows, k;
  std::uint32_t chunks = 4;  // pieces in which each rank's rows travel, at most `rows`
};

// C = A * B with A gathered from `own` of all ranks into `gathered` (USM, whole A; own rows are written, too)
// chunk by chunk on `transfers`. Collective. For own rows at once, then for each chunk for the rows of every
// other rank, calls
//
//   sycl::event multiply(const Element* from, std::uint64_t first_row, std::uint64_t rows, const dependencies&)
//
// which enqueues C[first_row, first_row + rows) = from[rows x k] * B after the dependencies, on a queue other
// than `transfers`, and returns its event. The order of the calls is always the same. Where the communicator's
// calls wait (the host platform), the products before still run meanwhile. Returns the events of all products.
// Throws what the communicator and `multiply` throw; products that were enqueued before that may still run.
template <typename Element, typename Multiply>
std::vector<sycl::event> allgather_gemm(const communicator& ranks, const sycl::queue& transfers,
                                        const Element* own, Element* gathered, const row_shards& shape,
                                        Multiply&& multiply, const dependencies& after = {}) {
  const auto size = static_cast<std::uint64_t>(ranks.size()), rank = static_cast<std::uint64_t>(ranks.rank());
  std::vector<sycl::event> products;
  products.push_back(multiply(own, rank * shape.rows, shape.rows, after));
  const std::uint64_t chunks =
      std::clamp<std::uint64_t>(shape.chunks, 1, std::max<std::uint64_t>(shape.rows, 1));
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::uint64_t begin = shape.rows * chunk / chunks, rows = shape.rows * (chunk + 1) / chunks - begin;
    const std::vector<std::uint64_t> counts(size, rows * shape.k);
    std::vector<std::uint64_t> places(size);
    for (std::uint64_t source = 0; source < size; ++source)
      places[source] = (source * shape.rows + begin) * shape.k;
    const sycl::event arrived =
        ranks.allgatherv(transfers, own + begin * shape.k, rows * shape.k, gathered, counts, places, after);
    for (std::uint64_t step = 1; step < size; ++step) {
      const std::uint64_t source = (rank + step) % size;
      products.push_back(
          multiply(gathered + places[source], source * shape.rows + begin, rows, dependencies{arrived}));
    }
  }
  return products;
}

}  // namespace isthmus

#endif
