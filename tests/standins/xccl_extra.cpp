// The collectives that NCCL has since 2.28, apart: a library without them stands for an older one.
#include "engine.hpp"
#include "standin.h"
#include "xccl_issue.hpp"

using standin::issue;
using standin::kind;

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
}
