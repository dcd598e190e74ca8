// mpi.hpp of an installed Isthmus with the MPI of the user.
#include <cstdio>
#include <isthmus/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const isthmus_communicator ranks = isthmus::mpi::create(MPI_COMM_WORLD);
  int mine = 1, sum = 0;
  if (isthmus_allreduce(&mine, &sum, 1, ISTHMUS_INT32, ISTHMUS_SUM, ranks, nullptr) != ISTHMUS_SUCCESS)
    return 1;
  std::printf("%d\n", sum);
  isthmus_communicator_destroy(ranks);
  MPI_Finalize();
}
