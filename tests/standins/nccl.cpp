// The C interface of NCCL and RCCL on the stand-in engine.
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "control.hpp"
#include "engine.hpp"
#include "issue.hpp"
#include "standin.h"

using standin::collective_kind;
using standin::request;
using standin::standin_comm;

namespace {

enum result : int { success = 0, internal_error = 3, in_progress = 7 };

// The first fields of ncclConfig_t.
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share;
};

struct unique_id {
  char text[128];
};

void apply_config(standin_comm& comm, const config* requested) {
  if (requested == nullptr) return;
  if (requested->blocking != INT_MIN) comm.blocking = requested->blocking != 0;
  if (requested->split_share != INT_MIN) comm.shares_resources = requested->split_share != 0;
}

// Runs `work` now or, if `status_comm` is non-blocking, in its background thread.
int in_background(standin_comm& status_comm, std::function<int()> work) {
  if (standin::defer(work)) return success;
  if (status_comm.blocking) return work();
  if (status_comm.setup.joinable()) status_comm.setup.join();
  status_comm.async_error = in_progress;
  status_comm.setup = std::thread([&status_comm, work = std::move(work)] { status_comm.async_error = work(); });
  return in_progress;
}

int connect_ranks(standin_comm& comm) {
  const auto stop = [&comm] { return comm.abort_flag->load(); };
  while (standin::init_hangs() && !stop()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (stop()) return internal_error;
  comm.boxes = std::make_unique<standin::mailboxes>(comm.name, comm.size);
  return comm.boxes->wait_for_all(stop) ? success : internal_error;
}

// Splits a communicator: all ranks exchange their colors and keys.
int split(standin_comm& parent, standin_comm* child, int color, int key, int number) {
  struct split_request {
    int color, key;
  } own_data{color, key};
  std::vector<split_request> all(static_cast<std::size_t>(parent.size));
  if (!standin::exchange(parent, &own_data, all.data(), sizeof(own_data))) return internal_error;
  if (child == nullptr) return success;
  child->rank = child->size = 0;
  for (int rank = 0; rank < parent.size; ++rank) {
    const split_request& peer_request = all[static_cast<std::size_t>(rank)];
    if (peer_request.color != color) continue;
    ++child->size;
    if (std::pair(peer_request.key, rank) < std::pair(key, parent.rank)) ++child->rank;
  }
  child->name = parent.name + "-" + std::to_string(number) + "-" + std::to_string(color);
  return connect_ranks(*child);
}

standin_comm* as_comm(void* handle) { return static_cast<standin_comm*>(handle); }

}  // namespace

using standin::issue;

extern "C" {
// Defined in the device stand-in, which this library links.
int cudaGetDevice(int* device);

STANDIN_API int ncclGetVersion(int* version) { return *version = standin::reported_version(), success; }

STANDIN_API int ncclGetUniqueId(void* id) {
  if (const int code = standin::record_call("ncclGetUniqueId")) return code;
  unsigned char secret[16];
  std::ifstream("/dev/urandom", std::ios::binary).read(reinterpret_cast<char*>(secret), sizeof(secret));
  unique_id new_comm{};
  std::strcpy(new_comm.text, "isthmus-standin-");
  for (const unsigned char byte : secret)
    std::snprintf(new_comm.text + std::strlen(new_comm.text), 3, "%02x", byte);
  std::memcpy(id, &new_comm, sizeof(new_comm));
  return success;
}

STANDIN_API const char* ncclGetErrorString(int code) {
  switch (code) {
    case 0: return "no error";
    case 1: return "unhandled cuda error";
    case 2: return "unhandled system error";
    case 3: return "internal error";
    case 4: return "invalid argument";
    case 5: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
STANDIN_API const char* ncclGetLastError(void*) { return "stand-in: the test asked for this failure"; }

STANDIN_API int ncclCommInitRankConfig(void** comm, int size, unique_id id, int rank, config* requested) {
  if (const int code = standin::record_call("ncclCommInitRankConfig")) return code;
  auto* const new_comm = new standin_comm;
  standin::count_communicators(1);
  new_comm->name = id.text;
  new_comm->rank = rank;
  new_comm->size = size;
  cudaGetDevice(&new_comm->device);
  apply_config(*new_comm, requested);
  *comm = new_comm;
  return in_background(*new_comm, [new_comm] { return connect_ranks(*new_comm); });
}

STANDIN_API int ncclCommSplit(void* handle, int color, int key, void** child_handle, config* requested) {
  if (const int code = standin::record_call("ncclCommSplit")) return code;
  standin_comm& parent = *as_comm(handle);
  *child_handle = nullptr;
  standin_comm* child = nullptr;
  if (color >= 0) {
    child = new standin_comm;
    standin::count_communicators(1);
    child->blocking = parent.blocking;
    child->device = parent.device;
    apply_config(*child, requested);
    if (parent.shares_resources) child->abort_flag = parent.abort_flag;
  }
  const int number = ++parent.splits;
  return in_background(parent, [&parent, child, color, key, number, child_handle] {
    const int code = split(parent, child, color, key, number);
    if (code == success) *child_handle = child;
    return code;
  });
}

STANDIN_API int ncclCommDestroy(void* handle) {
  if (const int code = standin::record_call("ncclCommDestroy")) return code;
  delete as_comm(handle);
  standin::count_communicators(-1);
  return success;
}

STANDIN_API int ncclCommAbort(void* handle) {
  if (const int code = standin::record_call("ncclCommAbort")) return code;
  standin_comm* const comm = as_comm(handle);
  comm->abort_flag->store(true);
  while (standin::abort_hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {  // running operations use the communicator until they notice the abort
    std::unique_lock lock(comm->ticket_mutex);
    comm->ticket_changed.wait_for(lock, std::chrono::seconds(5),
                                  [comm] { return comm->current_ticket >= comm->next_ticket; });
  }
  delete comm;
  standin::count_communicators(-1);
  return success;
}

STANDIN_API int ncclCommCuDevice(void* handle, int* device) {
  return *device = as_comm(handle)->device, success;
}
STANDIN_API int ncclCommCount(void* handle, int* count) { return *count = as_comm(handle)->size, success; }
STANDIN_API int ncclCommUserRank(void* handle, int* rank) { return *rank = as_comm(handle)->rank, success; }

STANDIN_API int ncclCommGetAsyncError(void* handle, int* code) {
  *code = as_comm(handle)->async_error;
  return success;
}

STANDIN_API int ncclGroupStart() { return standin::start_group(); }
STANDIN_API int ncclGroupEnd() { return standin::end_group("ncclGroupEnd"); }

STANDIN_API int ncclBroadcast(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                              void* stream) {
  return issue("ncclBroadcast", comm,
               {collective_kind::broadcast, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclReduce(const char* send, char* recv, size_t count, int datatype, int op, int root,
                           void* comm, void* stream) {
  return issue("ncclReduce", comm, {collective_kind::reduce, send, recv, count, datatype, op, root, stream});
}
STANDIN_API int ncclAllReduce(const char* send, char* recv, size_t count, int datatype, int op, void* comm,
                              void* stream) {
  return issue("ncclAllReduce", comm,
               {collective_kind::all_reduce, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int ncclReduceScatter(const char* send, char* recv, size_t count, int datatype, int op, void* comm,
                                  void* stream) {
  return issue("ncclReduceScatter", comm,
               {collective_kind::reduce_scatter, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int ncclAllGather(const char* send, char* recv, size_t count, int datatype, void* comm,
                              void* stream) {
  return issue("ncclAllGather", comm, {collective_kind::all_gather, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int ncclRecv(char* recv, size_t count, int datatype, int peer, void* comm, void* stream) {
  return issue("ncclRecv", comm, {collective_kind::recv, nullptr, recv, count, datatype, 0, peer, stream});
}
}
