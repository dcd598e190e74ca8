// The UCX library, loaded at run time, once per process.
#pragma once

#include <isthmus/backend.h>

#include <string>

#include "backends/ucx/ucp_api.hpp"

namespace isthmus::ucx {

struct library {
  ucp_functions api;
  unsigned minor = 0;             // minor version
  std::string path, description;  // "1.13.1 from /usr/lib/.../libucp.so.0"

  // Returns the library, which the first successful call loads. Returns null and sets `reason` if there is
  // no suitable library.
  // Thread safety: any thread.
  static const library* get(const isthmus_backend_context& context, std::string& reason);
};

}  // namespace isthmus::ucx
