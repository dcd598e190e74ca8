// What NCCL has gained lately, apart: a library without it stands for an older one.
#include <atomic>
#include <vector>

#include "engine.hpp"
#include "standin.h"
#include "steering.hpp"
#include "xccl_issue.hpp"

using standin::issue;
using standin::kind;

namespace {
std::atomic<int> registered{0};
}

extern "C" {
STANDIN_API int ncclAlltoAll(const char* send, char* recv, size_t count, int datatype, void* comm,
                             void* stream) {
  return issue("ncclAlltoAll", comm, {kind::all_to_all, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int ncclGather(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                           void* stream) {
  return issue("ncclGather", comm, {kind::gather, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclScatter(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                            void* stream) {
  return issue("ncclScatter", comm, {kind::scatter, send, recv, count, datatype, 0, root, stream});
}

// Registration changes no result; the stand-in only counts, and checks what the library demands.
STANDIN_API int ncclCommRegister(void*, void* buffer, size_t bytes, void** handle) {
  if (const int code = standin::enter("ncclCommRegister")) return code;
  if (buffer == nullptr || bytes == 0) return 4;
  ++registered;
  *handle = buffer;
  return 0;
}
STANDIN_API int ncclCommDeregister(void*, void*) {
  --registered;
  return standin::enter("ncclCommDeregister");
}
// Collective; every rank brings the same size.
STANDIN_API int ncclCommWindowRegister(void* handle, void* buffer, size_t bytes, void** window, int flags) {
  auto& comm = *static_cast<standin::communicator*>(handle);
  const int failure = standin::enter("ncclCommWindowRegister");
  std::vector<size_t> all(static_cast<size_t>(comm.size));
  if (!standin::exchange(comm, &bytes, all.data(), sizeof(bytes))) return 3;
  for (const size_t other : all)
    if (other != bytes) return 4;
  if (failure != 0) return failure;
  if (flags != 1) return 4;
  ++registered;
  *window = buffer;
  return 0;
}
STANDIN_API int ncclCommWindowDeregister(void*, void*) {
  --registered;
  return standin::enter("ncclCommWindowDeregister");
}
int standin_registered(void) { return registered; }
}
