// What the calling thread has between ncclGroupStart and ncclGroupEnd. Every call goes its own way, by what all
// ranks know of it, never by what else is in the group, which may differ from rank to rank: NCCL gets its calls
// at once, in its own group. Isthmus' start before that ends where none of NCCL's comes before them on their
// stream or communicator, the others behind it, each as one group of Isthmus. So a rank may group what another
// calls one by one, but for a call of Isthmus' between two of NCCL's, which NCCL can't let in.
#pragma once

#include "frontends/nccl/attach.hpp"
#include "frontends/nccl/attached_communicator.hpp"

namespace isthmus::nccl_shim {

bool is_in_group();

// A call that Isthmus takes at the end. NCCL's code.
int add_to_group(attached_communicator& communicator, const isthmus_operation& operation, preload::call_counter* counter);
// A call that NCCL has already got.
void note_nccl_call(attached_communicator& communicator, nccl_stream stream);
// A communicator that NCCL makes at the end.
void add_to_group(const pending_communicator& pending);

// ncclGroupStart and ncclGroupEnd.
int start_group();
int end_group();
// ncclGroupSimulateEnd, which ends a group without its calls.
int simulate_group_end(void* estimate);

}  // namespace isthmus::nccl_shim
