#include "runtime/builtin_backends.hpp"

namespace isthmus {

// Weak until both folders have landed.
[[gnu::weak]] const isthmus_backend* host_backend() noexcept;
[[gnu::weak]] const isthmus_backend* mpi_backend() noexcept;

std::vector<const isthmus_backend*> builtin_backends() {
  std::vector<const isthmus_backend*> backends;
  if (host_backend != nullptr) backends.push_back(host_backend());
  if (mpi_backend != nullptr) backends.push_back(mpi_backend());
  return backends;
}

}  // namespace isthmus
