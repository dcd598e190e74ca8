// The parts of the engine: attaching communicators (attach.cpp), collectives and messages (collectives.cpp) and groups
// (groups.cpp). engine.cpp contains the other functions that it handles.
#pragma once

#include "frontends/nccl/attached_communicator.hpp"

namespace isthmus::nccl_shim {

// ---- attaching ----
//
// Attaches an Isthmus communicator to each new NCCL communicator. This uses no NCCL calls, because a rank that
// runs without this library would not make them. Instead, the engine of rank 0 writes an Isthmus id, whose
// store runs in its process, into the unused end of ncclUniqueId.

// Writes an Isthmus id into NCCL's id. Leaves NCCL's id unchanged if it has no room or no store can be started.
void embed_id(native_unique_id& id);

// A communicator that NCCL creates in this call or at the end of the group.
struct pending_communicator {
  enum class creation_kind { init, split } kind;
  native_comm* handle;     // where NCCL stores the communicator
  isthmus_unique_id id{};  // init
  bool has_id = false;
  attached_communicator* parent = nullptr;  // split
  int color = 0, key = 0;
  bool is_blocking = true;
};

pending_communicator describe_init(native_comm* handle, const native_unique_id* id,
                                   const native_config* config);
pending_communicator describe_split(native_comm* handle, native_comm parent, int color, int key,
                                    const native_config* config);

// Collective, called after NCCL has created all of these communicators. Prints one line if a
// communicator cannot attach.
void attach_all(const pending_communicator* creations, std::size_t n);
// Does the same for all ranks of ncclCommInitAll.
void attach_init_all(native_comm* handle, int n);

// ---- collectives and messages ----

// Returns the engine's function for the name of a collective or message. NULL for other names, and if this NCCL does
// not have the function.
any_function find_collective(const char* name);
// Implements ncclBcast, the old form of ncclBroadcast with a single buffer.
int handle_bcast(void* buffer, std::size_t count, int datatype, int root, native_comm comm,
                 native_stream stream);

// ---- groups ----
//
// Collects the calls that a thread makes between ncclGroupStart and ncclGroupEnd.
//
// The choice between NCCL and Isthmus depends only on properties of the call that all ranks know, never on the
// rest of the group, which can differ between ranks. NCCL gets its calls immediately, in its own group. Isthmus
// calls start before NCCL's group ends if no NCCL call precedes them on the same stream or communicator; the
// others start after it. Each set is one Isthmus group.
//
// As a result, a rank may group calls that another rank issues one by one. The exception is an Isthmus call
// between two NCCL calls, because NCCL's group cannot be interrupted.
//
// Messages follow the collectives of the group, as in NCCL. If Isthmus executes some messages of a communicator, the end
// of the group issues all of its messages in phases (base/message_order.hpp), after NCCL's group.

bool is_in_group();

// A send or receive in a group.
struct grouped_message {
  attached_communicator* communicator;
  isthmus_operation operation;
  int datatype;  // NCCL's value
  native_comm comm;
  attached_communicator::call_decision decision;
  std::size_t nccl_calls_before = 0;  // set by add_to_group
};
int add_to_group(const grouped_message& message);

// Adds a call that Isthmus executes at the end of the group. Returns an NCCL result code.
int add_to_group(attached_communicator& communicator, const isthmus_operation& operation,
                 preload::call_counter* counter);
// Records a call that was already passed to NCCL.
void record_nccl_call(attached_communicator& communicator, native_stream stream);
// Adds a communicator that NCCL creates at the end of the group.
void add_to_group(const pending_communicator& pending);

// Implement ncclGroupStart and ncclGroupEnd.
int start_group();
int end_group();
// Implements ncclGroupSimulateEnd, which ends a group without executing its calls.
int simulate_group_end(void* estimate);

}  // namespace isthmus::nccl_shim
