// Interface between the preloaded library and the engine of an MPI family: the intercepted MPI functions.
#pragma once

#include <cstddef>
#include <iterator>

#include "frontends/preload/engine_loader.hpp"

namespace isthmus::mpi_shim {

// The intercepted functions that also have a variant with MPI_Count counts: X(name, Name, parameters).
#define ISTHMUS_MPI_COUNTED_FUNCTIONS(X)           \
  X(bcast, Bcast, 5)                               \
  X(reduce, Reduce, 7)                             \
  X(allreduce, Allreduce, 6)                       \
  X(reduce_scatter, Reduce_scatter, 6)             \
  X(reduce_scatter_block, Reduce_scatter_block, 6) \
  X(allgather, Allgather, 7)                       \
  X(allgatherv, Allgatherv, 8)                     \
  X(gather, Gather, 8)                             \
  X(gatherv, Gatherv, 9)                           \
  X(scatter, Scatter, 8)                           \
  X(scatterv, Scatterv, 9)                         \
  X(alltoall, Alltoall, 7)                         \
  X(alltoallv, Alltoallv, 9)

enum class mpi_function {
  mpi_barrier,
#define MPI_FUNCTION(name, Name, parameters) mpi_##name,
  ISTHMUS_MPI_COUNTED_FUNCTIONS(MPI_FUNCTION)
#undef MPI_FUNCTION
};

// Names of the MPI functions. The prefix P denotes MPI's own function. The suffix _c denotes the variant
// with MPI_Count counts.
inline constexpr const char* mpi_function_names[] = {"MPI_Barrier",
#define MPI_FUNCTION(name, Name, parameters) "MPI_" #Name,
                                                     ISTHMUS_MPI_COUNTED_FUNCTIONS(MPI_FUNCTION)
#undef MPI_FUNCTION
};
inline constexpr int mpi_function_count = static_cast<int>(std::size(mpi_function_names));

using preload::any_function;

// Indexed by mpi_function. NULL if the function does not exist (MPI_Barrier_c).
struct engine_table {
  std::size_t struct_bytes;
  any_function int_count_functions[mpi_function_count];    // counts are int
  any_function large_count_functions[mpi_function_count];  // counts are MPI_Count
};

// The only exported symbol of an engine: `const engine_table* isthmus_mpi_engine_v1(void)`.
inline constexpr const char* engine_symbol = "isthmus_mpi_engine_v1";

}  // namespace isthmus::mpi_shim
