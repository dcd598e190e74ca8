// A C++ MPI program with its own global operators. Prints "N wrong" on rank 0.
#include "../own_operators.hpp"

#include <mpi.h>

#include <map>
#include <string>
#include <vector>

namespace {

// The library must not use this program's instantiations of function templates, which allocate with its operators.
std::map<std::string, std::vector<char>, std::less<>> used_containers() {
  std::map<std::string, std::vector<char>, std::less<>> values;
  for (int i = 0; i < 100; ++i)
    values.emplace("a key that does not fit into the string itself " + std::to_string(i), 100);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, wrong = used_containers().size() == 100 ? 0 : 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int count = 1; count < 100000; count *= 3) {
    const std::vector<double> in(static_cast<std::size_t>(count), rank);
    std::vector<double> out(in.size());
    MPI_Allreduce(in.data(), out.data(), count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (const double each : out) wrong += each != size * (size - 1) / 2.0;
  }
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  for (int i = 0; i < 20; ++i) MPI_Barrier(copy);
  MPI_Comm_free(&copy);
  if (rank == 0) std::printf("%d wrong\n", wrong);
  MPI_Finalize();
  return 0;
}
