// Apart, so that a library without it stands for one that lacks a needed function.
#include <dlfcn.h>

#include "engine.hpp"
#include "standin.h"
#include "issue.hpp"

extern "C" {
STANDIN_API int ncclCommGetAsyncError(void* comm, int* error);
STANDIN_API int ncclSend(const char* send, size_t count, int datatype, int peer, void* comm, void* stream) {
  // As NCCL's own functions do, by its exported name, which a preloaded library may have taken. Looked up,
  // because this library's own calls may be linked to itself.
  using question = int(void*, int*);
  auto* const ask = reinterpret_cast<question*>(dlsym(RTLD_DEFAULT, "ncclCommGetAsyncError"));
  int error = 0;
  if (const int code = (ask != nullptr ? ask : &ncclCommGetAsyncError)(comm, &error); code != 0 || error != 0)
    return code != 0 ? code : error;
  return standin::issue("ncclSend", comm,
                        {standin::collective_kind::send, send, nullptr, count, datatype, 0, peer, stream});
}
}
