// The extension module isthmus._mpi: mpi.hpp compiled with the mpi.h of one MPI library and linked with that
// library. isthmus/mpi.py checks that mpi4py uses the same MPI before it passes a communicator.
#include <atomic>
#include <isthmus/mpi.hpp>

#include "common.hpp"

namespace nb = nanobind;
using isthmus::python::text;

namespace {

text library_version() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  return text(version, static_cast<std::size_t>(length));
}

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// Returns true if this call initialized MPI. In this case the caller must finalize it.
bool initialize() {
  if (is_initialized()) {
    return false;
  }
  int provided = MPI_THREAD_SINGLE;
  return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) == MPI_SUCCESS;
}

// Finalizes MPI. After `limit_s` seconds the process exits with code 1, unless `limit_s` is 0.
void finalize(double limit_s) {
  static std::atomic<bool> has_ended = false;
  if (!is_initialized() || is_finalized()) {
    return;
  }
  if (limit_s > 0) {
    isthmus::mpi::detail::exit_after(limit_s, 1, has_ended);
  }
  MPI_Finalize();
  has_ended = true;
}

// The table lives until the process exits, so the capsule has no deleter. Raises isthmus.Error.
nb::capsule table_of(MPI_Comm comm) {
  try {
    return nb::capsule(isthmus::mpi::persistent_table(comm), "isthmus_mpi_table");
  } catch (const isthmus::exception& failure) {
    isthmus::python::set_error(failure.info(), failure.ranks());
    throw nb::python_error();
  }
}

}  // namespace

NB_MODULE(_mpi, module) {
  module.doc() = "The functions of the MPI that isthmus was built with.";
  module.def("library_version", &library_version);
  module.def("is_initialized", &is_initialized);
  module.def("initialize", &initialize);
  module.def("finalize", &finalize, nb::arg("limit_s"), nb::call_guard<nb::gil_scoped_release>());
  module.def("world_table", [] { return table_of(MPI_COMM_WORLD); });
  // Fortran handles are integers in every MPI and valid in all modules that use the same library.
  module.def(
      "table", [](int fortran_handle) { return table_of(MPI_Comm_f2c(fortran_handle)); },
      nb::arg("fortran_handle"));
}
