// Compiled as C++17: mpi.hpp must not require a newer standard.
#include <isthmus/mpi.hpp>

static_assert(__cplusplus < 202002L);

isthmus_communicator header_17_create(MPI_Comm comm) { return isthmus::mpi::create(comm); }
