// SYCL communicators on MPI. Includes <mpi.h>; only programs that use MPI include this file.
#ifndef ISTHMUS_SYCL_MPI_HPP
#define ISTHMUS_SYCL_MPI_HPP

#include <isthmus/mpi.hpp>
#include <isthmus/sycl.hpp>

namespace isthmus {

// Collective over `comm`, which is duplicated; rank and size are MPI's. MPI must be initialised, and must
// not be finalised before the communicator is destroyed.
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
