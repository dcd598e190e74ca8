// A rank that connects through MPI: mpiexec -n N worker_mpi
#include <cstdio>
#include <exception>
#include <isthmus/mpi.hpp>

#include "faults/worker.hpp"

int main(int argc, char** argv) {
  int provided = 0, rank = 0, size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    const isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
    const int result =
        faults::run_rank(faults::trial_of_environment(), rank, size,
                         [&](const isthmus_communicator_options& options, isthmus_communicator* communicator) {
                           return isthmus_communicator_create_mpi(&table, &options, communicator);
                         });
    std::_Exit(result);  // MPI_Finalize would wait for dead ranks
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "worker: %s\n", failure.what());
    std::_Exit(2);
  }
}
