// Apart, so that a library without it stands for one that lacks a needed function.
#include "engine.hpp"
#include "standin.h"
#include "xccl_issue.hpp"

extern "C" {
STANDIN_API int ncclCommGetAsyncError(void* comm, int* error);
STANDIN_API int ncclSend(const char* send, size_t count, int datatype, int peer, void* comm, void* stream) {
  // As NCCL's own functions do, by its exported name, which a preloaded library may have taken.
  int error = 0;
  if (const int code = ncclCommGetAsyncError(comm, &error); code != 0 || error != 0)
    return code != 0 ? code : error;
  return standin::issue("ncclSend", comm,
                        {standin::kind::send, send, nullptr, count, datatype, 0, peer, stream});
}
}
