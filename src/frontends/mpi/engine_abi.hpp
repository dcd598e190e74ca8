// What the preloaded library and the engine of an MPI family agree on: which MPI functions are taken over.
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

// MPI's names; with a P before them its own functions, with _c behind them those whose counts are MPI_Count.
inline constexpr const char* mpi_function_names[mpi_function_count] = {
    "MPI_Barrier",   "MPI_Bcast",          "MPI_Reduce",
    "MPI_Allreduce", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block",
    "MPI_Allgather", "MPI_Allgatherv",     "MPI_Gather",
    "MPI_Gatherv",   "MPI_Scatter",        "MPI_Scatterv",
    "MPI_Alltoall",  "MPI_Alltoallv"};

using any_function = void (*)();

// By call. NULL: the family has no such function (Barrier_c).
struct engine_table {
  std::size_t struct_bytes;
  any_function int_count_functions[mpi_function_count];  // counts are int
  any_function large_count_functions[mpi_function_count];  // counts are MPI_Count
};

// The one symbol of an engine: `const engine_table* isthmus_mpi_engine_v1(void)`.
inline constexpr const char* engine_symbol = "isthmus_mpi_engine_v1";

}  // namespace isthmus::mpi_shim
