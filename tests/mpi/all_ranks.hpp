// A failure on one rank must fail the test on all ranks. Otherwise the others would hang in the next call.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstring>
#include <optional>
#include <string>

namespace mpi_test {

inline int rank() {
  int value = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  return value;
}
inline int size() {
  int value = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  return value;
}

// Collective. Returns the problem of the lowest rank that has one on all ranks, or "".
inline std::string first_problem(const std::optional<std::string>& own_problem) {
  const int no_rank = size();
  int reporter = own_problem ? rank() : no_rank, first = no_rank;
  MPI_Allreduce(&reporter, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (first == no_rank) return "";
  char text[1024] = "";
  if (first == rank()) std::strncpy(text, own_problem->c_str(), sizeof text - 1);
  MPI_Bcast(text, sizeof text, MPI_CHAR, first, MPI_COMM_WORLD);
  return "rank " + std::to_string(first) + ": " + text;
}

}  // namespace mpi_test
