#include "frontends/mpi/pass_reasons.hpp"

namespace isthmus::mpi_shim {
namespace {

constexpr const char* reason_texts[reason_count] = {
    "nothing to move",
    "an argument that MPI is to check",
    "a datatype that Isthmus does not reduce",
    "an operation other than sum, prod, min and max",
    "a communicator of one rank",
    "an intercommunicator",
    "MPI_Init was not called, or MPI is finalised",
    "an MPI that takes device memory",
    "its ranks do not reach each other's memory",
    "no backend for it",
    "between nodes no rule gives it to a backend of Isthmus' own",
    "a rank was lost",
    "the first calls of a communicator",
};

constexpr preload::statistics_labels labels = {"mpi",      "MPI",        "ISTHMUS_MPI_REPORT", mpi_function_names,
                                         mpi_function_count, reason_texts, reason_count};

}  // namespace

preload::call_statistics& statistics() {
  static auto* const instance = new preload::call_statistics(labels);
  return *instance;
}

}  // namespace isthmus::mpi_shim
