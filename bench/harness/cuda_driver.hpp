// The CUDA driver, loaded at run time, so that programs need no CUDA to be built.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "device/gpu/functions.hpp"

namespace bench {

class cuda_driver {
 public:
  // Makes the primary context of the device current in this thread.
  explicit cuda_driver(int ordinal) {
    const char* const replacement =
        std::getenv(isthmus::gpu::library_search(isthmus::gpu::vendor_library::cuda_driver).variable);
    m_library =
        dlopen(replacement != nullptr ? replacement : isthmus::gpu::cuda_driver_name, RTLD_NOW | RTLD_LOCAL);
    if (m_library == nullptr) throw std::runtime_error(dlerror());
    void* context = nullptr;
    call<int(unsigned)>("cuInit", 0U);
    call<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, ordinal);
    call<int(void*)>("cuCtxPushCurrent_v2", context);
  }

  template <typename Function>
  Function* find(const char* name) const {
    auto* const function = reinterpret_cast<Function*>(dlsym(m_library, name));
    if (function == nullptr) throw std::runtime_error(std::string("the CUDA driver has no function ") + name);
    return function;
  }
  template <typename Function, typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    if (const int code = find<Function>(name)(arguments...); code != 0)
      throw std::runtime_error(std::string(name) + " failed with code " + std::to_string(code));
  }

 private:
  void* m_library;
};

}  // namespace bench
