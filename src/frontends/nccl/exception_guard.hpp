// Wraps a C++ function as a C entry point that returns an NCCL result code and never throws into the program.
#pragma once

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {

template <auto Function>
struct exception_guard;
template <typename... Arguments, int (*Function)(Arguments...)>
struct exception_guard<Function> {
  static int call(Arguments... arguments) noexcept try { return Function(arguments...); } catch (...) {
    return nccl_internal_error;
  }
};

template <auto Function>
any_function entry_point_of() {
  return reinterpret_cast<any_function>(&exception_guard<Function>::call);
}

}  // namespace isthmus::nccl_shim
