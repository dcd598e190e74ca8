// The program's own NCCL, and calls into it.
#pragma once

#include "frontends/nccl/engine_abi.hpp"
#include "nccl/api.hpp"

namespace isthmus::nccl_shim {

using namespace nccl;

// The functions of the program's own NCCL. Loaded before the engine handles any call.
const native_functions& real_nccl();

// While an object exists, the calling thread is in an NCCL function that the engine called. NCCL calls some of its own
// exported functions (every call checks ncclCommGetAsyncError). If the library is preloaded, these calls reach the
// engine, which must return NCCL's own result without taking its locks.
class nccl_call_scope {
 public:
  nccl_call_scope() { ++depth(); }
  ~nccl_call_scope() { --depth(); }
  nccl_call_scope(const nccl_call_scope&) = delete;
  nccl_call_scope& operator=(const nccl_call_scope&) = delete;

  static bool is_active() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int value = 0;
    return value;
  }
};

template <typename Call>
int call_nccl(Call&& call) {
  const nccl_call_scope scope;
  return call();
}

// The entry point that replaces a function of NCCL, or NULL if the program's NCCL does not have that function.
template <auto Function, typename Real>
any_function replacement_of(Real* real) {
  constexpr auto on_exception = [](const auto&...) { return static_cast<int>(native_internal_error); };
  return real == nullptr ? nullptr : preload::guarded_entry<Function, on_exception>();
}

}  // namespace isthmus::nccl_shim
