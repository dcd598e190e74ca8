// Marks the calling thread as being inside NCCL. NCCL calls some of its own exported functions (every call
// checks ncclCommGetAsyncError). If the library is preloaded, these calls reach the engine, which must return
// NCCL's own result without taking its locks.
#pragma once

namespace isthmus::nccl_shim {

// While an object exists, the calling thread is in an NCCL function that the engine called.
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
