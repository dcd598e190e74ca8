// 01: one rank per MPI process; sums an array in USM.
//
//   mpiexec -n 4 01_allreduce_usm
#include <cstdio>
#include <isthmus/sycl/mpi.hpp>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int wrong = 0;
  {
    const sycl::device device{sycl::default_selector_v};
    sycl::queue queue{device, sycl::property::queue::in_order{}};
    const isthmus::communicator ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);

    constexpr std::size_t count = 1000;
    float* values = sycl::malloc_shared<float>(count, queue);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(ranks.rank() + 1);

    ranks.allreduce(queue, values, count).wait();  // in place; the default operation is sum

    const float expected = static_cast<float>(ranks.size() * (ranks.size() + 1)) / 2;
    for (std::size_t i = 0; i < count; ++i) wrong += values[i] != expected;
    std::printf("rank %d of %d: the sum is %g, %d wrong\n", ranks.rank(), ranks.size(), values[0], wrong);
    sycl::free(values, queue);
  }  // destroy communicators before MPI_Finalize
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
