// Apart, so that a library without it stands for one that lacks a needed function.
#include "engine.hpp"
#include "standin.h"
#include "xccl_issue.hpp"

extern "C" {
STANDIN_API int ncclSend(const char* send, size_t count, int datatype, int peer, void* comm, void* stream) {
  return standin::issue("ncclSend", comm,
                        {standin::kind::send, send, nullptr, count, datatype, 0, peer, stream});
}
}
