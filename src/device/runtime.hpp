// The CUDA or HIP runtime for plug-ins, loaded at run time. Plug-ins need the runtime because the vendors'
// collective libraries use its current device, and because the application's streams and memory belong to it. The
// core uses drivers instead (driver.hpp).
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "device/gpu/functions.hpp"

namespace isthmus {

struct device_runtime : gpu::gpu_functions {
  // Returns "", or the reason why this machine has no such runtime. `library`: a path that replaces the search.
  // `site_packages`: a folder that is searched first. Both may be null.
  std::string load(isthmus_platform platform, const char* library, const char* site_packages);
};

// Makes a device current for the calling thread and restores the previous device in the destructor. A template,
// because p2p uses it with the runtime to which p2p is linked.
//
// Runtime: a type with get_device(int*) and set_device(int), which return 0 on success.
// Lifetime: the runtime must outlive this object.
template <typename Runtime>
class scoped_device {
 public:
  using code_type = decltype(std::declval<const Runtime&>().set_device(0));

  scoped_device(const Runtime& runtime, int device) : m_runtime(runtime) {
    m_code = runtime.get_device(&m_previous);
    if (m_code == code_type{} && m_previous != device) m_code = runtime.set_device(device);
    m_has_changed = m_code == code_type{} && m_previous != device;
  }
  ~scoped_device() {
    if (m_has_changed) (void)m_runtime.set_device(m_previous);
  }
  scoped_device(const scoped_device&) = delete;
  scoped_device& operator=(const scoped_device&) = delete;

  code_type code() const { return m_code; }

 private:
  const Runtime& m_runtime;
  int m_previous = -1;
  bool m_has_changed = false;
  code_type m_code{};
};

}  // namespace isthmus
