// The interface between the preloaded library and its engine.
#pragma once

#include <cstddef>

#include "frontends/preload/engine_loader.hpp"

namespace isthmus::nccl_shim {

using preload::any_function;

// The functions that the engine handles in addition to the collectives and messages: X(Name, member, handler), where
// member is the name in native_functions and handler is the engine's function.
#define NCCL_HANDLED_FUNCTIONS(X)                                             \
  X(GetUniqueId, get_unique_id, handle_unique_id)                             \
  X(CommInitRank, comm_init_rank, handle_init_rank)                           \
  X(CommInitRankConfig, comm_init_rank_config, handle_init_rank_config)       \
  X(CommInitRankScalable, comm_init_rank_scalable, handle_init_rank_scalable) \
  X(CommInitAll, comm_init_all, handle_init_all)                              \
  X(CommSplit, comm_split, handle_split)                                      \
  X(CommDestroy, comm_destroy, handle_destroy)                                \
  X(CommAbort, comm_abort, handle_abort)                                      \
  X(CommRevoke, comm_revoke, handle_revoke)                                   \
  X(CommGetAsyncError, comm_get_async_error, handle_async_error)              \
  X(GroupStart, group_start, start_group)                                     \
  X(GroupEnd, group_end, end_group)                                           \
  X(GroupSimulateEnd, group_simulate_end, simulate_group_end)                 \
  X(Bcast, bcast, handle_bcast)

// Functions that the preloaded library provides: lookup in the program's own NCCL. Returns NULL if that version
// does not have the function.
struct engine_host {
  std::size_t struct_bytes;
  any_function (*find_real)(const char* name);
};

// Functions that the engine provides: lookup of its replacement for an NCCL function. Returns NULL if the
// engine does not replace it.
struct engine_table {
  std::size_t struct_bytes;
  any_function (*find)(const char* name);
};

// The only exported symbol of the engine: `const engine_table* isthmus_nccl_engine_v1(const engine_host*)`.
// Returns NULL if the engine cannot work with that NCCL.
inline constexpr const char* engine_symbol = "isthmus_nccl_engine_v1";

}  // namespace isthmus::nccl_shim
