#include <stdexcept>

#include "rank_runner.hpp"

namespace conformance {

int run_in_mpi(const rank_function&) {
  throw std::runtime_error("this program was built without MPI: run conformance_mpi under mpiexec");
}

}  // namespace conformance
