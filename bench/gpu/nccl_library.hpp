// NCCL of the machine, loaded at run time, for programs that are compiled with its header. Each program looks
// up only the functions that it calls, so that it runs with every version that has them.
#pragma once

#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <string>

#include "check.hpp"

namespace gpu_bench {

inline void check(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error("NCCL: error " + std::to_string(code));
}

class nccl_library {
 public:
  template <typename Function>
  Function symbol(const char* name) const {
    void* const address = dlsym(m_handle, name);
    if (address == nullptr) throw std::runtime_error(std::string("NCCL has no function ") + name);
    return reinterpret_cast<Function>(address);
  }

 private:
  static void* open() {
    const char* const path = std::getenv("ISTHMUS_NCCL_LIBRARY");
    void* const handle = dlopen(path != nullptr ? path : "libnccl.so.2", RTLD_NOW);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return handle;
  }

  void* m_handle = open();
};

}  // namespace gpu_bench
