// Functions for tools and front ends. A program that only communicates needs none of them: isthmus.h and memory.h
// declare the life cycle, the collectives and the memory. The sections below are ordered by caller:
//   Inspection: the command-line tools (isthmus info, explain, doctor), benchmarks, tests, and the MPI and NCCL
//     shims, which look up the path of a call.
//   Front ends: the SYCL, MPI and PyTorch front ends, which map their own devices, operations and streams.
//   Calculation: programs that divide work between ranks of different speeds; partition.hpp wraps it for C++.
#ifndef ISTHMUS_TOOLS_H
#define ISTHMUS_TOOLS_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- inspection -------------------------------------------------------------------------------------

// Describes the communicator as JSON: ranks, nodes, device, bootstrap, rules with their sources, and backends
// with version, state and the reason why a backend is unavailable. Writes at most `capacity` bytes, including
// the NUL. `*required_bytes` (may be NULL) receives the full length, including the NUL. Call twice: first for
// the length, then for the text.
ISTHMUS_API isthmus_status isthmus_communicator_info(isthmus_communicator communicator, char* json,
                                                     size_t capacity, size_t* required_bytes);

// Explains as JSON which backend, algorithm and rule this operation would use, and why every other rule does
// not apply. Runs the same selection as a real call. Buffers may be NULL.
ISTHMUS_API isthmus_status isthmus_communicator_explain(isthmus_communicator communicator,
                                                        const isthmus_operation* operation, char* json,
                                                        size_t capacity, size_t* required_bytes);

// Returns the path that an operation would use: "backend:algorithm" or "backend"; "" if no backend supports the
// call. The result is equal on all ranks and truncated to `capacity` bytes, including the NUL. Takes a few
// microseconds, so callers should cache the answer. Buffers may be NULL.
ISTHMUS_API isthmus_status isthmus_communicator_path(isthmus_communicator communicator,
                                                     const isthmus_operation* operation, char* path,
                                                     size_t capacity);

// Diagnoses this user's jobs on this machine from the flight recorders of their ranks, as JSON
// (docs/guide/diagnosis.md). For each communicator, one sentence says which rank keeps the others waiting, and
// for how long. Selects the jobs of process `pid` (0: any) whose name starts with `job` (NULL: any). Includes
// ranks that have died. With `trace_folder` (NULL: none), diagnoses the state at the end of the traces in that
// folder (ISTHMUS_TRACE) instead. `json`, `capacity` and `required_bytes` are as in isthmus_communicator_info().
// The length can change between two calls: allocate extra space. Needs no communicator and does not wait.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT if `trace_folder` cannot be read.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_diagnose(int64_t pid, const char* job, const char* trace_folder, char* json,
                                            size_t capacity, size_t* required_bytes);

// Describes `device` as JSON: its providers in order, each with its state or the reason why it is
// unavailable, the pool, and the live blocks. The call opens the providers. `json`, `capacity` and
// `required_bytes` are as in isthmus_communicator_info().
ISTHMUS_API isthmus_status isthmus_memory_explain(isthmus_device device, char* json, size_t capacity,
                                                  size_t* required_bytes);

// Returns the number of live blocks of this process: plain blocks, and blocks of symmetric heaps that the
// caller must free. The result is 0 after the program has freed all of them.
ISTHMUS_API uint64_t isthmus_memory_live_blocks(void);

// ---- front ends -------------------------------------------------------------------------------------

// Looks up the platform of a sycl::backend value in the configuration's [sycl_backends] table, by name
// ("ext_oneapi_cuda"; may be NULL) and by number. `*is_found` is 0 if the table has neither. The SYCL
// front end calls this before a communicator exists. It reads the configuration file, so do not call it
// for every operation.
ISTHMUS_API isthmus_status isthmus_sycl_backend_platform(const char* config_path, const char* name, int number,
                                                         isthmus_platform* platform, int* is_found);

// Reports whether a stream of this device is being captured into a graph. Work that is enqueued on such a
// stream runs when the graph is launched, and must not wait for events that were recorded outside the capture.
// NULL streams and streams of the host platform are never captured.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_stream_is_capturing(isthmus_device device, isthmus_stream stream,
                                                       int* is_capturing);

// inout_buf[i] = in_buf[i] (op) inout_buf[i] on host memory, with the arithmetic of the collective table. For
// avg, it computes the sum, and the caller must divide it. The backends `shm` and `mpi` use this reduction.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_reduce_local(const void* in_buf, void* inout_buf, uint64_t count,
                                                isthmus_datatype datatype, isthmus_reduction_op op);

// ---- calculation ------------------------------------------------------------------------------------

// Divides `count` elements among n ranks in proportion to their speeds, for reduce_scatterv,
// allgatherv and scatterv.
// Inputs: speeds[i] is the measured speed of rank i in any unit, for example elements per second. A rank with
// speed 0 gets no elements. All ranks must pass the same speeds to get the same result, so exchange the
// measurements first (allgather).
// Outputs: counts[i] elements at offset displs[i]. Blocks are contiguous in rank order and sum
// to exactly `count`.
// Rounding: shares are multiples of `granularity` (1: any count). Leftover granules go to the ranks with the
// largest remainders; ties go to the lower rank. The last nonempty share also gets the elements that do not
// fill a granule.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT, without writing anything, if n or granularity is 0, a speed is
// negative, infinite or NaN, or all speeds are 0.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_partition(const double* speeds, int n, uint64_t count, uint64_t granularity,
                                             uint64_t* counts, uint64_t* displs);

#ifdef __cplusplus
}
#endif
#endif
