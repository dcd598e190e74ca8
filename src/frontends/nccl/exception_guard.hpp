// C's face of a function that returns NCCL's codes: nothing may be thrown through the program.
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
