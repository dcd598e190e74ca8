// Collects the calls that a thread makes between ncclGroupStart and ncclGroupEnd.
//
// The choice between NCCL and Isthmus depends only on properties of the call that all ranks know, never on the
// rest of the group, which can differ between ranks. NCCL gets its calls immediately, in its own group. Isthmus
// calls start before NCCL's group ends if no NCCL call precedes them on the same stream or communicator; the
// others start after it. Each set is one Isthmus group.
//
// As a result, a rank may group calls that another rank issues one by one. The exception is an Isthmus call
// between two NCCL calls, because NCCL's group cannot be interrupted.
#pragma once

#include "frontends/nccl/attach.hpp"
#include "frontends/nccl/attached_communicator.hpp"

namespace isthmus::nccl_shim {

bool is_in_group();

// Adds a call that Isthmus executes at the end of the group. Returns an NCCL result code.
int add_to_group(attached_communicator& communicator, const isthmus_operation& operation,
                 preload::call_counter* counter);
// Records a call that was already passed to NCCL.
void record_nccl_call(attached_communicator& communicator, nccl_stream stream);
// Adds a communicator that NCCL creates at the end of the group.
void add_to_group(const pending_communicator& pending);

// Implement ncclGroupStart and ncclGroupEnd.
int start_group();
int end_group();
// Implements ncclGroupSimulateEnd, which ends a group without executing its calls.
int simulate_group_end(void* estimate);

}  // namespace isthmus::nccl_shim
