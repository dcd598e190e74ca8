// ncclSend is in a separate file, because a library without it stands for one that lacks a required function.
#include <dlfcn.h>

#include "engine.hpp"
#include "issue.hpp"
#include "standin.h"

extern "C" {
STANDIN_API int ncclCommGetAsyncError(void* comm, int* error);
STANDIN_API int ncclSend(const char* send, size_t count, int datatype, int peer, void* comm, void* stream) {
  // Like NCCL's own functions, call the exported ncclCommGetAsyncError, which a preloaded library may
  // interpose. It is looked up because direct calls may be bound within this library.
  using query_function = int(void*, int*);
  auto* const query_error = reinterpret_cast<query_function*>(dlsym(RTLD_DEFAULT, "ncclCommGetAsyncError"));
  int error = 0;
  if (const int code = (query_error != nullptr ? query_error : &ncclCommGetAsyncError)(comm, &error);
      code != 0 || error != 0)
    return code != 0 ? code : error;
  return standin::issue("ncclSend", comm,
                        {standin::collective_kind::send, send, nullptr, count, datatype, 0, peer, stream});
}
}
