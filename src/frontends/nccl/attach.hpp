// How the ranks of a new communicator of NCCL meet again as one of Isthmus, without a call of NCCL: a rank that
// does not run with this library would not make it. The 128 bytes of ncclUniqueId begin with NCCL's own and end
// with zeros; rank 0's engine puts an id of Isthmus there, whose store is in its process.
#pragma once

#include "frontends/nccl/attached_communicator.hpp"

namespace isthmus::nccl_shim {

// Puts an id of Isthmus into what NCCL made. Without room, or a store, the id stays as it is.
void embed_id(nccl_unique_id& id);

// A communicator that NCCL is to make in this call, or at the end of the group.
struct pending_communicator {
  enum class creation_kind { init, split } kind;
  nccl_comm* handle;         // where NCCL puts it
  isthmus_unique_id id{};  // meet
  bool has_id = false;
  attached_communicator* parent = nullptr;  // split
  int color = 0, key = 0;
  bool is_blocking = true;
};

pending_communicator pending_init(nccl_comm* handle, const nccl_unique_id* id, const nccl_config* config);
pending_communicator pending_split(nccl_comm* handle, nccl_comm parent, int color, int key, const nccl_config* config);

// Collective; after NCCL made all of them. One line says why where one is not attached.
void attach_all(const pending_communicator* creations, std::size_t n);
// The ranks of ncclCommInitAll.
void attach_init_all(nccl_comm* handle, int n);

}  // namespace isthmus::nccl_shim
