// Interface between the preloaded library and the engine of an MPI family: the intercepted MPI functions.
#pragma once

#include <cstddef>

namespace isthmus::mpi_shim {

enum class mpi_function {
  mpi_barrier,
  mpi_bcast,
  mpi_reduce,
  mpi_allreduce,
  mpi_reduce_scatter,
  mpi_reduce_scatter_block,
  mpi_allgather,
  mpi_allgatherv,
  mpi_gather,
  mpi_gatherv,
  mpi_scatter,
  mpi_scatterv,
  mpi_alltoall,
  mpi_alltoallv
};
inline constexpr int mpi_function_count = 14;

// Names of the MPI functions. The prefix P denotes MPI's own function. The suffix _c denotes the variant
// with MPI_Count counts.
inline constexpr const char* mpi_function_names[mpi_function_count] = {
    "MPI_Barrier",   "MPI_Bcast",          "MPI_Reduce",
    "MPI_Allreduce", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block",
    "MPI_Allgather", "MPI_Allgatherv",     "MPI_Gather",
    "MPI_Gatherv",   "MPI_Scatter",        "MPI_Scatterv",
    "MPI_Alltoall",  "MPI_Alltoallv"};

using any_function = void (*)();

// Indexed by mpi_function. NULL if the function does not exist (MPI_Barrier_c).
struct engine_table {
  std::size_t struct_bytes;
  any_function int_count_functions[mpi_function_count];    // counts are int
  any_function large_count_functions[mpi_function_count];  // counts are MPI_Count
};

// The only exported symbol of an engine: `const engine_table* isthmus_mpi_engine_v1(void)`.
inline constexpr const char* engine_symbol = "isthmus_mpi_engine_v1";

}  // namespace isthmus::mpi_shim
