// The shared block of the harness for ranks started by an MPI launcher.
#pragma once

#include <mpi.h>

#include <cstdio>

#include "team.hpp"

namespace bench {

// Collective over MPI_COMM_WORLD, whose ranks must be on one machine. Rank 0 creates the block under a
// temporary name and broadcasts the name, which is removed before this function returns.
inline team create_mpi_team(double timeout_s) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char name[64] = "";
  shared_block* block = nullptr;
  if (rank == 0) {
    std::snprintf(name, sizeof name, "%s", fresh_name().c_str());
    block = map_named(name, true);
  }
  MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0) block = map_named(name, false);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink_named(name);
  return {block, rank, size, timeout_s};
}

}  // namespace bench
