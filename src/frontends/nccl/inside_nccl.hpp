// NCCL asks itself by its exported names (ncclCommGetAsyncError in each of its calls), which lead to the engine
// when the library is preloaded. Such a question is NCCL's own: it gets NCCL's answer, not Isthmus', and meets
// none of the engine's locks.
#pragma once

namespace isthmus::nccl_shim {

// While one lives, the calling thread is in a function of NCCL's that the engine called.
class inside_nccl {
 public:
  inside_nccl() { ++depth(); }
  ~inside_nccl() { --depth(); }
  inside_nccl(const inside_nccl&) = delete;
  inside_nccl& operator=(const inside_nccl&) = delete;

  static bool is_so() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int only = 0;
    return only;
  }
};

template <typename Call>
int call_nccl(Call&& call) {
  const inside_nccl now;
  return call();
}

}  // namespace isthmus::nccl_shim
