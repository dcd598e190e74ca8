#include "runtime/builtin_backends.hpp"

#include "backend/host/host_backend.hpp"
#include "backend/mpi/mpi_backend.hpp"

namespace isthmus {

std::vector<const isthmus_backend*> builtin_backends() { return {host_backend(), mpi_backend()}; }

}  // namespace isthmus
