// Declarations of the part of NCCL's C interface that the engine calls, so that nccl.h is not needed.
// abi_check.cpp compares them with nccl.h if it is installed. Functions that the loaded NCCL lacks are NULL.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <optional>

#include "frontends/nccl/engine_abi.hpp"

namespace isthmus::nccl_shim {

using nccl_comm = void*;
using nccl_stream = void*;

enum nccl_result : int {
  nccl_success = 0,
  nccl_unhandled_cuda_error = 1,
  nccl_internal_error = 3,
  nccl_invalid_argument = 4,
  nccl_remote_error = 6,
  nccl_in_progress = 7
};

struct nccl_unique_id {
  char internal[128];
};

// The first fields of ncclConfig_t. The library reads `size` to find out how many fields there are.
struct nccl_config {
  std::size_t size;
  unsigned magic, version;
  int blocking;  // 0: calls on the communicator return before they complete
};

// Isthmus equivalents of ncclDataType_t and ncclRedOp_t, by value. User-defined operations have none.
inline constexpr isthmus_datatype datatypes[] = {ISTHMUS_INT8,     ISTHMUS_UINT8,       ISTHMUS_INT32,
                                                 ISTHMUS_UINT32,   ISTHMUS_INT64,       ISTHMUS_UINT64,
                                                 ISTHMUS_FLOAT16,  ISTHMUS_FLOAT32,     ISTHMUS_FLOAT64,
                                                 ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3, ISTHMUS_FLOAT8_E5M2};
inline constexpr int datatype_count = 12;
inline constexpr isthmus_reduction_op reductions[] = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN,
                                                      ISTHMUS_AVG};
inline constexpr int reduction_count = 5;

// X(member, name, parameters)
#define NCCL_FUNCTIONS(X)                                                                                  \
  X(get_unique_id, "ncclGetUniqueId", (nccl_unique_id*))                                                   \
  X(comm_init_rank, "ncclCommInitRank", (nccl_comm*, int, nccl_unique_id, int))                            \
  X(comm_init_rank_config, "ncclCommInitRankConfig", (nccl_comm*, int, nccl_unique_id, int, nccl_config*)) \
  X(comm_init_rank_scalable, "ncclCommInitRankScalable",                                                   \
    (nccl_comm*, int, int, int, nccl_unique_id*, nccl_config*))                                            \
  X(comm_init_all, "ncclCommInitAll", (nccl_comm*, int, const int*))                                       \
  X(comm_split, "ncclCommSplit", (nccl_comm, int, int, nccl_comm*, nccl_config*))                          \
  X(comm_destroy, "ncclCommDestroy", (nccl_comm))                                                          \
  X(comm_abort, "ncclCommAbort", (nccl_comm))                                                              \
  X(comm_revoke, "ncclCommRevoke", (nccl_comm, int))                                                       \
  X(comm_get_async_error, "ncclCommGetAsyncError", (nccl_comm, int*))                                      \
  X(comm_count, "ncclCommCount", (nccl_comm, int*))                                                        \
  X(comm_user_rank, "ncclCommUserRank", (nccl_comm, int*))                                                 \
  X(comm_device, "ncclCommCuDevice", (nccl_comm, int*))                                                    \
  X(bcast, "ncclBcast", (void*, std::size_t, int, int, nccl_comm, nccl_stream))                            \
  X(group_start, "ncclGroupStart", ())                                                                     \
  X(group_end, "ncclGroupEnd", ())                                                                         \
  X(group_simulate_end, "ncclGroupSimulateEnd", (void*))

// Function types of the collectives and messages.
using data_movement = int(const void*, void*, std::size_t, int datatype, nccl_comm, nccl_stream);
using rooted_data_movement = int(const void*, void*, std::size_t, int datatype, int root, nccl_comm,
                                 nccl_stream);
using reduction = int(const void*, void*, std::size_t, int datatype, int op, nccl_comm, nccl_stream);
using rooted_reduction = int(const void*, void*, std::size_t, int datatype, int op, int root, nccl_comm,
                             nccl_stream);
using send_message = int(const void*, std::size_t, int datatype, int peer, nccl_comm, nccl_stream);
using recv_message = int(void*, std::size_t, int datatype, int peer, nccl_comm, nccl_stream);

struct nccl_functions {
  any_function collectives[ISTHMUS_COLLECTIVE_COUNT] = {};  // by isthmus_collective
  any_function configured[ISTHMUS_COLLECTIVE_COUNT] = {};   // the ...Config variants of 2.32
#define NCCL_MEMBER(member, name, parameters) int(*member) parameters = nullptr;
  NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

// The program's own NCCL. Loaded before the engine handles any call.
const nccl_functions& real_nccl();

}  // namespace isthmus::nccl_shim
