#include "frontends/mpi/pass_reasons.hpp"

namespace isthmus::mpi_shim {
namespace {

constexpr const char* reason_texts[reason_count] = {
    "no data",
    "invalid argument, to be reported by MPI",
    "datatype not supported by the reductions of Isthmus",
    "reduction other than sum, prod, min and max",
    "communicator with one rank",
    "intercommunicator",
    "MPI not initialized or already finalized",
    "MPI library with support for device memory",
    "ranks cannot access each other's memory",
    "not supported by any Isthmus backend",
    "no rule selects an Isthmus backend between nodes",
    "a rank failed or aborted",
    "communicator not attached yet (first calls)",
};

constexpr preload::statistics_labels labels = {
    "mpi", "MPI", "ISTHMUS_MPI_REPORT", mpi_function_names, mpi_function_count, reason_texts, reason_count};

}  // namespace

preload::call_statistics& statistics() {
  static auto* const instance = new preload::call_statistics(labels);
  return *instance;
}

}  // namespace isthmus::mpi_shim
