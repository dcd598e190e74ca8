// 02: part of a two-dimensional buffer, and an explicit dependency on an out-of-order queue.
//
//   mpiexec -n 3 02_buffers_and_dependencies
#include <cstdio>
#include <isthmus/sycl/mpi.hpp>
#include <vector>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int wrong = 0;
  {
    const sycl::device device{sycl::default_selector_v};
    sycl::queue queue{device};  // out of order: accessors and events determine the order
    const isthmus::communicator ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);

    // Broadcast row 2 of a grid from rank 0. The broadcast waits for the producer, because both access the
    // buffer. The other rows do not change.
    constexpr std::size_t rows = 4, columns = 100, row = 2;
    sycl::buffer<double, 2> grid{sycl::range<2>(rows, columns)};
    const std::vector<double> start(rows * columns, ranks.rank() == 0 ? 0.5 : -1);
    queue.submit([&](sycl::handler& handler) {
      sycl::accessor cells{grid, handler, sycl::write_only, sycl::no_init};
      handler.copy(start.data(), cells);  // or a kernel
    });
    ranks.broadcast(queue, isthmus::at_offset(grid, row * columns), columns, 0);

    // USM has no accessors: pass the producer's event to the collective and use the event that it returns.
    int* own = sycl::malloc_shared<int>(1, queue);
    int* all = sycl::malloc_shared<int>(static_cast<std::size_t>(ranks.size()), queue);
    const int rank = ranks.rank();
    const sycl::event produced = queue.fill(own, 10 * rank, 1);
    sycl::event gathered = ranks.allgather(queue, own, all, 1, {produced});
    gathered.wait();

    const sycl::host_accessor cells{grid, sycl::read_only};
    wrong += cells[row][0] != 0.5 || cells[row - 1][columns - 1] != (rank == 0 ? 0.5 : -1);
    for (int r = 0; r < ranks.size(); ++r) wrong += all[r] != 10 * r;
    std::printf("rank %d of %d: row %zu holds %g, %d wrong\n", rank, ranks.size(), row, cells[row][0], wrong);
    sycl::free(own, queue);
    sycl::free(all, queue);
  }
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
