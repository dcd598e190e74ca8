// Attaches an Isthmus communicator to each new NCCL communicator. This uses no NCCL calls, because a rank that
// runs without this library would not make them. Instead, the engine of rank 0 writes an Isthmus id, whose
// store runs in its process, into the unused end of ncclUniqueId.
#pragma once

#include "frontends/nccl/attached_communicator.hpp"

namespace isthmus::nccl_shim {

// Writes an Isthmus id into NCCL's id. Leaves NCCL's id unchanged if it has no room or no store can be started.
void embed_id(nccl_unique_id& id);

// A communicator that NCCL creates in this call or at the end of the group.
struct pending_communicator {
  enum class creation_kind { init, split } kind;
  nccl_comm* handle;       // where NCCL stores the communicator
  isthmus_unique_id id{};  // init
  bool has_id = false;
  attached_communicator* parent = nullptr;  // split
  int color = 0, key = 0;
  bool is_blocking = true;
};

pending_communicator describe_init(nccl_comm* handle, const nccl_unique_id* id, const nccl_config* config);
pending_communicator describe_split(nccl_comm* handle, nccl_comm parent, int color, int key,
                                    const nccl_config* config);

// Collective, called after NCCL has created all of these communicators. Prints one line if a
// communicator cannot attach.
void attach_all(const pending_communicator* creations, std::size_t n);
// Does the same for all ranks of ncclCommInitAll.
void attach_init_all(nccl_comm* handle, int n);

}  // namespace isthmus::nccl_shim
