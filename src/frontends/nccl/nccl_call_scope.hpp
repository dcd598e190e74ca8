// NCCL asks itself by its exported names (ncclCommGetAsyncError in each of its calls), which lead to the engine
// when the library is preloaded. Such a question is NCCL's own: it gets NCCL's answer, not Isthmus', and meets
// none of the engine's locks.
#pragma once

namespace isthmus::nccl_shim {

// While one lives, the calling thread is in a function of NCCL's that the engine called.
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

}  // namespace isthmus::nccl_shim
