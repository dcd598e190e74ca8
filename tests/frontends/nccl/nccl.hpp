// The part of NCCL's interface that the test programs use. They are linked with the stand-in
// or with NCCL itself.
#pragma once

#include <cstddef>

extern "C" {
struct nccl_id {
  char internal[128];
};
int ncclGetUniqueId(nccl_id* id);
int ncclCommInitRank(void** comm, int size, nccl_id id, int rank);
int ncclCommInitRankConfig(void** comm, int size, nccl_id id, int rank, void* config);
int ncclCommInitAll(void** comms, int n, const int* devices);
int ncclCommSplit(void* comm, int color, int key, void** part, void* config);
int ncclCommDestroy(void* comm);
int ncclCommAbort(void* comm);
int ncclCommRevoke(void* comm, int flags);
int ncclCommGetAsyncError(void* comm, int* error);
int ncclCommCount(void* comm, int* count);
int ncclCommUserRank(void* comm, int* rank);
int ncclGroupStart();
int ncclGroupEnd();
int ncclGroupSimulateEnd(void* estimate);
int ncclAllReduce(const void*, void*, std::size_t, int datatype, int op, void* comm, void* stream);
int ncclAllGather(const void*, void*, std::size_t, int datatype, void* comm, void* stream);
int ncclReduceScatter(const void*, void*, std::size_t, int datatype, int op, void* comm, void* stream);
int ncclBroadcast(const void*, void*, std::size_t, int datatype, int root, void* comm, void* stream);
int ncclBroadcastConfig(const void*, void*, std::size_t, int datatype, int root, void* comm, void* stream,
                        const void* configuration);
int ncclBcast(void*, std::size_t, int datatype, int root, void* comm, void* stream);
int ncclReduce(const void*, void*, std::size_t, int datatype, int op, int root, void* comm, void* stream);
int ncclAlltoAll(const void*, void*, std::size_t, int datatype, void* comm, void* stream);
int ncclGather(const void*, void*, std::size_t, int datatype, int root, void* comm, void* stream);
int ncclScatter(const void*, void*, std::size_t, int datatype, int root, void* comm, void* stream);
int ncclSend(const void*, std::size_t, int datatype, int peer, void* comm, void* stream);
int ncclRecv(void*, std::size_t, int datatype, int peer, void* comm, void* stream);
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int datatype, int residence, void* comm);

int standin_driver_calls(const char* function);
int standin_live_events();
void standin_fail(const char* function, int nth, int code);
void standin_fail_half_way(int code);
void standin_stream_submit(void* stream, void (*function)(void*), void* argument);
int cudaSetDevice(int device);
int cudaMalloc(void** pointer, std::size_t bytes);
int cudaFree(void* pointer);
int cudaStreamCreateWithFlags(void** stream, unsigned flags);
int cudaStreamSynchronize(void* stream);
int cudaStreamDestroy(void* stream);
}
