// SYCL communicators on MPI. Includes <mpi.h>; only programs that use MPI include this file.
#ifndef ISTHMUS_SYCL_MPI_HPP
#define ISTHMUS_SYCL_MPI_HPP

#include <isthmus/mpi.hpp>
#include <isthmus/sycl.hpp>

namespace isthmus {

/// Ranks that meet through MPI. Collective over `comm`, which is duplicated; rank and size are MPI's. MPI must
/// be initialised, and must not be finalised before the communicator is destroyed.
/// @code
/// MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
/// {
///   const sycl::device device{sycl::default_selector_v};
///   auto ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);
/// }
/// MPI_Finalize();
/// @endcode
/// @param comm Any intracommunicator. The program may go on using it: Isthmus communicates on its copy.
/// @param device Where this rank's memory is.
/// @param options Configuration, timeout and how operations of the host run.
/// @return This rank of the communicator. Threads may use it as MPI's thread level allows (mpi.hpp).
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE where MPI is not initialised; else as the
///   constructor.
inline communicator make_communicator(MPI_Comm comm, const sycl::device& device,
                                      const communicator_options& options = {}) {
  return communicator(
      communicator::create(device, options,
                           [&](const isthmus_communicator_options& native, isthmus_communicator* handle) {
                             return mpi::create(comm, &native, handle);
                           }),
      device, options.host);
}

}  // namespace isthmus

#endif
