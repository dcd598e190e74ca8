// MPI's own functions under common names for int and MPI_Count counts. They must be the PMPI functions, because
// the MPI names resolve to the preloaded library.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <type_traits>

#if MPI_VERSION < 4
#include "frontends/mpi/large_counts_mpi3.hpp"
#endif

namespace isthmus::mpi_shim {

struct small_counts {
  using count_type = int;
  using displacement_type = int;
  static constexpr auto& mpi_bcast = PMPI_Bcast;
  static constexpr auto& mpi_reduce = PMPI_Reduce;
  static constexpr auto& mpi_allreduce = PMPI_Allreduce;
  static constexpr auto& mpi_reduce_scatter = PMPI_Reduce_scatter;
  static constexpr auto& mpi_reduce_scatter_block = PMPI_Reduce_scatter_block;
  static constexpr auto& mpi_allgather = PMPI_Allgather;
  static constexpr auto& mpi_allgatherv = PMPI_Allgatherv;
  static constexpr auto& mpi_gather = PMPI_Gather;
  static constexpr auto& mpi_gatherv = PMPI_Gatherv;
  static constexpr auto& mpi_scatter = PMPI_Scatter;
  static constexpr auto& mpi_scatterv = PMPI_Scatterv;
  static constexpr auto& mpi_alltoall = PMPI_Alltoall;
  static constexpr auto& mpi_alltoallv = PMPI_Alltoallv;
};

#if MPI_VERSION >= 4
struct large_counts {
  using count_type = MPI_Count;
  using displacement_type = MPI_Aint;
  static constexpr auto& mpi_bcast = PMPI_Bcast_c;
  static constexpr auto& mpi_reduce = PMPI_Reduce_c;
  static constexpr auto& mpi_allreduce = PMPI_Allreduce_c;
  static constexpr auto& mpi_reduce_scatter = PMPI_Reduce_scatter_c;
  static constexpr auto& mpi_reduce_scatter_block = PMPI_Reduce_scatter_block_c;
  static constexpr auto& mpi_allgather = PMPI_Allgather_c;
  static constexpr auto& mpi_allgatherv = PMPI_Allgatherv_c;
  static constexpr auto& mpi_gather = PMPI_Gather_c;
  static constexpr auto& mpi_gatherv = PMPI_Gatherv_c;
  static constexpr auto& mpi_scatter = PMPI_Scatter_c;
  static constexpr auto& mpi_scatterv = PMPI_Scatterv_c;
  static constexpr auto& mpi_alltoall = PMPI_Alltoall_c;
  static constexpr auto& mpi_alltoallv = PMPI_Alltoallv_c;
};
#endif

// MPICH and its derivatives report an error if the send buffer is the receive buffer. Open MPI treats such
// calls as in place.
#if defined(OPEN_MPI)
inline constexpr bool reports_aliases = false;
#else
inline constexpr bool reports_aliases = true;
#endif

// Converts a handle to a number. Handles are ints in MPICH and pointers in Open MPI and in the MPI 5 ABI.
template <typename Handle>
std::uintptr_t key_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>)
    return reinterpret_cast<std::uintptr_t>(handle);
  else
    return static_cast<std::uint32_t>(handle);
}

}  // namespace isthmus::mpi_shim
