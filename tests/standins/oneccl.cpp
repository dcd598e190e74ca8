// oneCCL's C interface, version 2022, on the stand-in engine: streams are sycl::queue*, one rank per process.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sycl/sycl.hpp>

#include "control.hpp"
#include "engine.hpp"
#include "issue.hpp"
#include "standin.h"

using standin::collective_kind;
using standin::issue;
using standin::standin_comm;

namespace {

struct unique_id {
  char data[4096];
};

standin_comm* as_comm(void* handle) { return static_cast<standin_comm*>(handle); }

}  // namespace

extern "C" {

// Runs a task of engine.cpp on a queue, as a host task, in order.
STANDIN_API void standin_stream_submit(void* stream, void (*function)(void*), void* argument) {
  static_cast<sycl::queue*>(stream)->submit(
      [=](sycl::handler& handler) { handler.host_task([=] { function(argument); }); });
}

STANDIN_API int onecclGetVersion(int* version) {
  const char* version_text = std::getenv("STANDIN_ONECCL_VERSION");
  return *version = version_text != nullptr ? std::atoi(version_text) : 20220200, 0;
}

STANDIN_API int onecclGetUniqueId(void* id) {
  if (const int code = standin::record_call("onecclGetUniqueId")) return code;
  unsigned char secret[16];
  std::ifstream("/dev/urandom", std::ios::binary).read(reinterpret_cast<char*>(secret), sizeof(secret));
  unique_id new_comm{};
  std::strcpy(new_comm.data, "isthmus-standin-");
  for (const unsigned char byte : secret)
    std::snprintf(new_comm.data + std::strlen(new_comm.data), 3, "%02x", byte);
  std::memcpy(id, &new_comm, sizeof(new_comm));
  return 0;
}

STANDIN_API const char* onecclGetErrorString(int code) { return code == 0 ? "no error" : "an error"; }
STANDIN_API const char* onecclGetLastError(void*) { return "stand-in: the test asked for this failure"; }

STANDIN_API int onecclCommInitRank(void** comm, size_t size, unique_id id, int rank) {
  if (const int code = standin::record_call("onecclCommInitRank")) return code;
  auto* const new_comm = new standin_comm;
  standin::count_communicators(1);
  new_comm->name = id.data;
  new_comm->rank = rank;
  new_comm->size = static_cast<int>(size);
  new_comm->boxes = std::make_unique<standin::mailboxes>(new_comm->name, new_comm->size);
  new_comm->boxes->wait_for_all([] { return false; });
  *comm = new_comm;
  return 0;
}

STANDIN_API int onecclCommDestroy(void* comm) {
  if (const int code = standin::record_call("onecclCommDestroy")) return code;
  delete as_comm(comm);
  standin::count_communicators(-1);
  return 0;
}

// The backend looks this up but does not use it.
STANDIN_API int onecclCommSplit(void*, int, int, void**, void*) {
  return standin::record_call("onecclCommSplit") + 12;
}

STANDIN_API int onecclGroupStart() { return standin::start_group(); }
STANDIN_API int onecclGroupEnd() { return standin::end_group("onecclGroupEnd"); }

STANDIN_API int onecclBroadcast(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                                void* stream) {
  return issue("onecclBroadcast", comm,
               {collective_kind::broadcast, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int onecclReduce(const char* send, char* recv, size_t count, int datatype, int op, int root,
                             void* comm, void* stream) {
  return issue("onecclReduce", comm, {collective_kind::reduce, send, recv, count, datatype, op, root, stream});
}
STANDIN_API int onecclAllReduce(const char* send, char* recv, size_t count, int datatype, int op, void* comm,
                                void* stream) {
  return issue("onecclAllReduce", comm,
               {collective_kind::all_reduce, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int onecclReduceScatter(const char* send, char* recv, size_t count, int datatype, int op,
                                    void* comm, void* stream) {
  return issue("onecclReduceScatter", comm,
               {collective_kind::reduce_scatter, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int onecclAllGather(const char* send, char* recv, size_t count, int datatype, void* comm,
                                void* stream) {
  return issue("onecclAllGather", comm,
               {collective_kind::all_gather, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int onecclAllToAll(const char* send, char* recv, size_t count, int datatype, void* comm,
                               void* stream) {
  return issue("onecclAllToAll", comm,
               {collective_kind::all_to_all, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int onecclSend(const char* send, size_t count, int datatype, int peer, void* comm, void* stream) {
  return issue("onecclSend", comm, {collective_kind::send, send, nullptr, count, datatype, 0, peer, stream});
}
STANDIN_API int onecclRecv(char* recv, size_t count, int datatype, int peer, void* comm, void* stream) {
  return issue("onecclRecv", comm, {collective_kind::recv, nullptr, recv, count, datatype, 0, peer, stream});
}
}
