// The applications of the SuCL paper and two Parallel Research Kernels, each on plain MPI (the paper's Listing
// 1) and on Isthmus. Transports alternate within a run.
//
//   mpiexec -n 4 sycl_applications transpose --size 256 --json transpose.json
//
// Exit status: 0, 1 (a failure), 2 (a wrong result).
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "common/comparison.hpp"
#include "common/device.hpp"

namespace {

apps::application_entry entry_of(const apps::program_options& options) {
  if (options.application == "comd") return apps::comd_entry();
  if (options.application == "halo") return apps::halo_entry();
  if (options.application == "prk_stencil") return apps::prk_stencil_entry();
  if (options.application == "prk_transpose") return apps::prk_transpose_entry();
  return apps::transpose_entry();
}

int exit_status = 1;

// DPC++ 2026.2 may release commands that host tasks delayed as late as in its exit handlers, and their kernels
// after the runtime compiler is gone (an occasional crash). The process therefore exits before those handlers.
void end_here() {
  std::fflush(nullptr);
  std::_Exit(exit_status);
}

}  // namespace

int main(int argc, char** argv) {
  apps::program_options options = apps::parse(argc, argv);
  std::atexit(
      end_here);  // before MPI registers its handlers, which then run first: with them MPICH leaves its launcher
  int provided = 0, rank = 0, ranks = 1;
  // Calls come from one thread at a time, but with host tasks not from the thread that initialized MPI.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  apps::scale_to_ranks(options, ranks);
  int status = 1;
  try {
    apps::prepare_environment();
    status = apps::compare_transports(options, entry_of(options)) == 0 ? 0 : 2;
  } catch (const apps::bad_argument& argument_error) {  // all ranks throw the same exception
    if (rank == 0) std::fprintf(stderr, "sycl_applications: %s\n", argument_error.what());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "sycl_applications: rank %d: %s\n", rank, failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  exit_status = status;
  return status;
}
