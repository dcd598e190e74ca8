// Functions of recent NCCL versions. A library without this file stands for an older version.
#include <atomic>
#include <vector>

#include "control.hpp"
#include "engine.hpp"
#include "issue.hpp"
#include "standin.h"

using standin::collective_kind;
using standin::issue;

namespace {
std::atomic<int> registered{0};
}

extern "C" {
// Defined in the device stand-in, which this library links.
int cudaGetDevice(int* device);
int cudaSetDevice(int device);

int ncclGetUniqueId(void* id);
int ncclGroupStart();
int ncclGroupEnd();
struct standin_unique_id {
  char text[128];
};
int ncclCommInitRankConfig(void** comm, int size, standin_unique_id id, int rank, void* config);

STANDIN_API int ncclCommInitRank(void** comm, int size, standin_unique_id id, int rank) {
  if (const int code = standin::record_call("ncclCommInitRank")) return code;
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
STANDIN_API int ncclCommInitAll(void** comms, int n, const int* devices) {
  if (const int code = standin::record_call("ncclCommInitAll")) return code;
  standin_unique_id id;
  int previous_device = 0;
  cudaGetDevice(&previous_device);
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < n; ++rank) {
    cudaSetDevice(devices == nullptr ? rank : devices[rank]);
    ncclCommInitRankConfig(&comms[rank], n, id, rank, nullptr);
  }
  cudaSetDevice(previous_device);
  return ncclGroupEnd();
}
// Ends running operations. Later ones fail.
STANDIN_API int ncclCommRevoke(void* handle, int) {
  if (const int code = standin::record_call("ncclCommRevoke")) return code;
  static_cast<standin::standin_comm*>(handle)->abort_flag->store(true);
  return 0;
}
STANDIN_API int ncclBcast(char* buffer, size_t count, int datatype, int root, void* comm, void* stream) {
  return issue("ncclBcast", comm,
               {collective_kind::broadcast, buffer, buffer, count, datatype, 0, root, stream});
}
STANDIN_API int ncclGroupSimulateEnd(void*) { return standin::simulate_group_end(); }
// A single operation, which the stand-in executes as a sum.
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
  return issue("ncclBroadcastConfig", comm,
               {collective_kind::broadcast, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclGather(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                           void* stream) {
  return issue("ncclGather", comm, {collective_kind::gather, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclScatter(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                            void* stream) {
  return issue("ncclScatter", comm, {collective_kind::scatter, send, recv, count, datatype, 0, root, stream});
}

// Registration does not change results. The stand-in only counts registrations and checks arguments.
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
// Collective; all ranks must pass the same size.
STANDIN_API int ncclCommWindowRegister(void* handle, void* buffer, size_t bytes, void** window, int flags) {
  auto& comm = *static_cast<standin::standin_comm*>(handle);
  const int failure = standin::record_call("ncclCommWindowRegister");
  std::vector<size_t> all(static_cast<size_t>(comm.size));
  if (!standin::exchange(comm, &bytes, all.data(), sizeof(bytes))) return 3;
  for (const size_t entry_bytes : all)
    if (entry_bytes != bytes) return 4;
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
