// The C interface of NCCL, which is RCCL's too, on the stand-in's engine.
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "engine.hpp"
#include "standin.h"
#include "steering.hpp"
#include "xccl_issue.hpp"

using standin::communicator;
using standin::kind;
using standin::request;

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

void configure(communicator& comm, const config* wanted) {
  if (wanted == nullptr) return;
  if (wanted->blocking != INT_MIN) comm.blocking = wanted->blocking != 0;
  if (wanted->split_share != INT_MIN) comm.share = wanted->split_share != 0;
}

// Runs `work` now or, on a non-blocking communicator, in the background of `reporter`.
int in_background(communicator& reporter, std::function<int()> work) {
  if (standin::defer(work)) return success;
  if (reporter.blocking) return work();
  if (reporter.setup.joinable()) reporter.setup.join();
  reporter.asynchronous = in_progress;
  reporter.setup = std::thread([&reporter, work = std::move(work)] { reporter.asynchronous = work(); });
  return in_progress;
}

int attach(communicator& comm) {
  const auto stop = [&comm] { return comm.abort_flag->load(); };
  while (standin::init_hangs() && !stop()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (stop()) return internal_error;
  comm.wires = std::make_unique<standin::mailboxes>(comm.name, comm.size);
  return comm.wires->meet(stop) ? success : internal_error;
}

// Who goes where in a split: every rank learns all colors and keys.
int split(communicator& parent, communicator* child, int color, int key, int number) {
  struct wish {
    int color, key;
  } mine{color, key};
  std::vector<wish> all(static_cast<std::size_t>(parent.size));
  if (!standin::exchange(parent, &mine, all.data(), sizeof(mine))) return internal_error;
  if (child == nullptr) return success;
  child->rank = child->size = 0;
  for (int rank = 0; rank < parent.size; ++rank) {
    const wish& other = all[static_cast<std::size_t>(rank)];
    if (other.color != color) continue;
    ++child->size;
    if (std::pair(other.key, rank) < std::pair(key, parent.rank)) ++child->rank;
  }
  child->name = parent.name + "-" + std::to_string(number) + "-" + std::to_string(color);
  return attach(*child);
}

communicator* as_comm(void* handle) { return static_cast<communicator*>(handle); }

}  // namespace

using standin::issue;

extern "C" {
// Of the stand-in of the device, which this is linked with.
int cudaGetDevice(int* device);

STANDIN_API int ncclGetVersion(int* version) { return *version = standin::reported_version(), success; }

STANDIN_API int ncclGetUniqueId(void* id) {
  if (const int code = standin::enter("ncclGetUniqueId")) return code;
  unsigned char secret[16];
  std::ifstream("/dev/urandom", std::ios::binary).read(reinterpret_cast<char*>(secret), sizeof(secret));
  unique_id made{};
  std::strcpy(made.text, "isthmus-standin-");
  for (const unsigned char byte : secret) std::snprintf(made.text + std::strlen(made.text), 3, "%02x", byte);
  std::memcpy(id, &made, sizeof(made));
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

STANDIN_API int ncclCommInitRankConfig(void** comm, int size, unique_id id, int rank, config* wanted) {
  if (const int code = standin::enter("ncclCommInitRankConfig")) return code;
  auto* const made = new communicator;
  standin::count_communicators(1);
  made->name = id.text;
  made->rank = rank;
  made->size = size;
  cudaGetDevice(&made->device);
  configure(*made, wanted);
  *comm = made;
  return in_background(*made, [made] { return attach(*made); });
}

STANDIN_API int ncclCommSplit(void* handle, int color, int key, void** part, config* wanted) {
  if (const int code = standin::enter("ncclCommSplit")) return code;
  communicator& parent = *as_comm(handle);
  *part = nullptr;
  communicator* child = nullptr;
  if (color >= 0) {
    child = new communicator;
    standin::count_communicators(1);
    child->blocking = parent.blocking;
    child->device = parent.device;
    configure(*child, wanted);
    if (parent.share) child->abort_flag = parent.abort_flag;
  }
  const int number = ++parent.splits;
  return in_background(parent, [&parent, child, color, key, number, part] {
    const int code = split(parent, child, color, key, number);
    if (code == success) *part = child;
    return code;
  });
}

STANDIN_API int ncclCommDestroy(void* handle) {
  if (const int code = standin::enter("ncclCommDestroy")) return code;
  delete as_comm(handle);
  standin::count_communicators(-1);
  return success;
}

STANDIN_API int ncclCommAbort(void* handle) {
  if (const int code = standin::enter("ncclCommAbort")) return code;
  communicator* const comm = as_comm(handle);
  comm->abort_flag->store(true);
  {  // what has started uses the communicator until it notices
    std::unique_lock lock(comm->turn_mutex);
    comm->turn_changed.wait_for(lock, std::chrono::seconds(5),
                                [comm] { return comm->serving >= comm->next_ticket; });
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
  *code = as_comm(handle)->asynchronous;
  return success;
}

STANDIN_API int ncclGroupStart() { return standin::start_group(); }
STANDIN_API int ncclGroupEnd() { return standin::end_group("ncclGroupEnd"); }

STANDIN_API int ncclBroadcast(const char* send, char* recv, size_t count, int datatype, int root, void* comm,
                              void* stream) {
  return issue("ncclBroadcast", comm, {kind::broadcast, send, recv, count, datatype, 0, root, stream});
}
STANDIN_API int ncclReduce(const char* send, char* recv, size_t count, int datatype, int op, int root,
                           void* comm, void* stream) {
  return issue("ncclReduce", comm, {kind::reduce, send, recv, count, datatype, op, root, stream});
}
STANDIN_API int ncclAllReduce(const char* send, char* recv, size_t count, int datatype, int op, void* comm,
                              void* stream) {
  return issue("ncclAllReduce", comm, {kind::all_reduce, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int ncclReduceScatter(const char* send, char* recv, size_t count, int datatype, int op, void* comm,
                                  void* stream) {
  return issue("ncclReduceScatter", comm, {kind::reduce_scatter, send, recv, count, datatype, op, 0, stream});
}
STANDIN_API int ncclAllGather(const char* send, char* recv, size_t count, int datatype, void* comm,
                              void* stream) {
  return issue("ncclAllGather", comm, {kind::all_gather, send, recv, count, datatype, 0, 0, stream});
}
STANDIN_API int ncclRecv(char* recv, size_t count, int datatype, int peer, void* comm, void* stream) {
  return issue("ncclRecv", comm, {kind::recv, nullptr, recv, count, datatype, 0, peer, stream});
}
}
