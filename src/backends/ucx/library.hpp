// UCX, found and loaded at run time, once per process.
#pragma once

#include <isthmus/backend.h>

#include <string>

#include "backends/ucx/ucp_api.hpp"

namespace isthmus::ucx {

struct library {
  ucp_functions api;
  unsigned minor = 0;      // of its version
  std::string path, description;  // "1.13.1 from /usr/lib/.../libucp.so.0"

  // The process's library, loaded at the first call that succeeds; null and `reason` where this machine has
  // none that will do.
  static const library* get(const isthmus_backend_context& context, std::string& reason);
};

}  // namespace isthmus::ucx
