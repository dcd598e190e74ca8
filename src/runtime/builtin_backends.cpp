#include "runtime/builtin_backends.hpp"

#include "backend/copy_engine/copy_engine_backend.hpp"
#include "backend/host/host_backend.hpp"
#include "backend/mpi/mpi_backend.hpp"

namespace isthmus {

std::vector<const isthmus_backend*> builtin_backends() {
  return {host_backend(), mpi_backend(), copy_engine_backend()};
}

}  // namespace isthmus
