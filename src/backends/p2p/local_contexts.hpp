// Backend contexts for ranks that are devices of one process. They provide the members that peer_scratch uses:
// rank, size, device and an allgather between the threads that set up the ranks.
#pragma once

#include <isthmus/backend.h>

#include <barrier>
#include <cstring>
#include <vector>

namespace isthmus::p2p {

class local_contexts {
 public:
  local_contexts(int n, const isthmus_device* devices, double timeout_s)
      : m_barrier(n), m_zeros(static_cast<std::size_t>(n), 0), m_slots(static_cast<std::size_t>(n)) {
    for (int rank = 0; rank < n; ++rank) {
      rank_slot& slot = m_slots[static_cast<std::size_t>(rank)];
      slot.owner = this;
      isthmus_backend_context& context = slot.context;
      context.struct_bytes = sizeof context;
      context.runtime = &slot;
      context.rank = context.node_rank = rank;
      context.size = context.node_size = context.process_size = n;
      context.node_of = context.process_of = m_zeros.data();
      context.device = devices[rank];
      context.timeout_s = timeout_s;
      context.allgather = allgather;
      context.option = no_option;
    }
  }

  const isthmus_backend_context& context(int rank) const {
    return m_slots[static_cast<std::size_t>(rank)].context;
  }

 private:
  struct rank_slot {
    local_contexts* owner;
    isthmus_backend_context context{};
    const void* contribution;
  };

  // Every rank calls this function in its own thread. The second barrier keeps contributions valid until all
  // have copied them.
  static isthmus_status allgather(void* runtime, const void* contribution, void* gathered, std::size_t bytes) {
    auto& own = *static_cast<rank_slot*>(runtime);
    own.contribution = contribution;
    own.owner->m_barrier.arrive_and_wait();
    auto* to = static_cast<std::byte*>(gathered);
    for (const rank_slot& slot : own.owner->m_slots) {
      std::memcpy(to, slot.contribution, bytes);
      to += bytes;
    }
    own.owner->m_barrier.arrive_and_wait();
    return ISTHMUS_SUCCESS;
  }

  static const char* no_option(void*, const char*) { return nullptr; }

  std::barrier<> m_barrier;
  std::vector<int> m_zeros;
  std::vector<rank_slot> m_slots;
};

}  // namespace isthmus::p2p
