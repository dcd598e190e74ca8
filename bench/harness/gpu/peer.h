// The interface of a plug-in with which gpu_bench measures another library's allreduce (--peer NAME=FILE).
//
// A plug-in is a shared library that exports gpu_bench_peer_library(). One host thread drives the devices of all ranks in one
// process. Every method of a plug-in is one way to make a call, for example an algorithm of the library.
//
// Errors: a function that returns text returns null on success, otherwise a message that ends the program.
#pragma once

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_BENCH_PEER_VERSION = 1 };

typedef struct gpu_bench_peer_group {
  int ranks;
  const int* devices;      // by rank
  void* const* inputs;     // by rank: the buffer that all calls of the rank read
  uint64_t largest_bytes;  // of an input
} gpu_bench_peer_group;

typedef struct gpu_bench_peer_call {
  int rank;      // its device is the current device
  void* stream;  // a cudaStream_t, which may be in capture mode
  isthmus_datatype datatype;
  uint64_t tokens, hidden;  // the input has tokens * hidden elements
  const void* input;        // the buffer of the group
  // An allreduce writes the sum to `output`, and the pointers below are null. Otherwise `output` is null, and the call is
  // allreduce, residual addition and RMSNorm: residual_out = sum + residual, rounded to the datatype, and
  // normalized = residual_out / sqrt(mean(residual_out^2) + eps) * weight for each token.
  void* output;
  const void *residual, *weight;
  void *residual_out, *normalized;
  float eps;
} gpu_bench_peer_call;

typedef struct gpu_bench_peer {
  int version;                 // GPU_BENCH_PEER_VERSION
  const char* library;         // name and version of the library, for the records
  const char* const* methods;  // names, ends with null
  // Called once, before all other functions.
  const char* (*open)(const gpu_bench_peer_group* group);
  // Whether the method can make the call. The result is the same on all ranks.
  int (*supports)(int method, const gpu_bench_peer_call* call);
  // Enqueues the call of one rank on its stream. The calls of all ranks follow each other.
  const char* (*enqueue)(int method, const gpu_bench_peer_call* call);
} gpu_bench_peer;

const gpu_bench_peer* gpu_bench_peer_library(void);

#ifdef __cplusplus
}
#endif
