// What NCCL has gained lately, apart: a library without it stands for an older one.
#include <atomic>
#include <vector>

#include "engine.hpp"
#include "standin.h"
#include "control.hpp"
#include "issue.hpp"

using standin::issue;
using standin::collective_kind;

namespace {
std::atomic<int> registered{0};
}

extern "C" {
// Of the stand-in of the device, which this is linked with.
int cudaGetDevice(int* device);
int cudaSetDevice(int device);

int ncclGetUniqueId(void* id);
int ncclGroupStart();
int ncclGroupEnd();
struct standin_unique_id {
  char text[128];
};
int ncclCommInitRankConfig(void** comm, int size, standin_unique_id id, int rank, void* wanted);

STANDIN_API int ncclCommInitRank(void** comm, int size, standin_unique_id id, int rank) {
  if (const int code = standin::record_call("ncclCommInitRank")) return code;
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
STANDIN_API int ncclCommInitAll(void** comms, int n, const int* devices) {
  if (const int code = standin::record_call("ncclCommInitAll")) return code;
  standin_unique_id id;
  int before = 0;
  cudaGetDevice(&before);
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < n; ++rank) {
    cudaSetDevice(devices == nullptr ? rank : devices[rank]);
    ncclCommInitRankConfig(&comms[rank], n, id, rank, nullptr);
  }
  cudaSetDevice(before);
  return ncclGroupEnd();
}
STANDIN_API int ncclBcast(char* buffer, size_t count, int datatype, int root, void* comm, void* stream) {
  return issue("ncclBcast", comm, {collective_kind::broadcast, buffer, buffer, count, datatype, 0, root, stream});
}
STANDIN_API int ncclGroupSimulateEnd(void*) { return standin::simulate_group_end(); }
// One operation, which the stand-in carries out as a sum.
STANDIN_API int ncclRedOpCreatePreMulSum(int* op, void*, int, int, void*) {
  return *op = 5, standin::record_call("ncclRedOpCreatePreMulSum");
}
STANDIN_API int ncclAlltoAll(const char* send, char* recv, size_t count, int datatype, void* comm,
                             void* stream) {
  return issue("ncclAlltoAll", comm, {collective_kind::all_to_all, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int ncclBroadcastConfig(const char* send, char* recv, size_t count, int datatype, int root,
                                    void* comm, void* stream, const void* configuration) {
  if (configuration == nullptr) return 4;
  return issue("ncclBroadcastConfig", comm, {collective_kind::broadcast, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclGather(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                           void* stream) {
  return issue("ncclGather", comm, {collective_kind::gather, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclScatter(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                            void* stream) {
  return issue("ncclScatter", comm, {collective_kind::scatter, send, recv, count, datatype, 0, root, stream});
}

// Registration changes no result; the stand-in only counts, and checks what the library demands.
STANDIN_API int ncclCommRegister(void*, void* buffer, size_t bytes, void** handle) {
  if (const int code = standin::record_call("ncclCommRegister")) return code;
  if (buffer == nullptr || bytes == 0) return 4;
  ++registered;
  *handle = buffer;
  return 0;
}
STANDIN_API int ncclCommDeregister(void*, void*) {
  --registered;
  return standin::record_call("ncclCommDeregister");
}
// Collective; every rank brings the same size.
STANDIN_API int ncclCommWindowRegister(void* handle, void* buffer, size_t bytes, void** window, int flags) {
  auto& comm = *static_cast<standin::standin_comm*>(handle);
  const int failure = standin::record_call("ncclCommWindowRegister");
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
  return standin::record_call("ncclCommWindowDeregister");
}
int standin_registered(void) { return registered; }
}
