// SYCL communicators on MPI. This file includes <mpi.h>, so include it only in programs that use MPI.
#ifndef ISTHMUS_SYCL_MPI_HPP
#define ISTHMUS_SYCL_MPI_HPP

#include <isthmus/mpi.hpp>
#include <isthmus/sycl.hpp>

namespace isthmus {

/// Creates a communicator from an MPI communicator. Collective over `comm`, which is duplicated; rank and size
/// are those of `comm`. MPI must be initialized. Destroy the communicator before MPI_Finalize.
/// @code
/// MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
/// {
///   const sycl::device device{sycl::default_selector_v};
///   auto ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);
/// }
/// MPI_Finalize();
/// @endcode
/// @param comm Any intracommunicator. The program can continue to use it, because Isthmus communicates
///   on a duplicate.
/// @param device The device of this rank's memory.
/// @param options Configuration, timeout and the execution of host operations.
/// @return This rank's communicator. MPI's thread level limits which threads can use it (mpi.hpp).
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE if MPI is not initialized. Also throws the
///   exceptions of the constructor.
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
