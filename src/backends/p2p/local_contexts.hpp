// What peers need of a backend's context when all ranks are devices of one process: an allgather between the
// threads that set them up.
#pragma once

#include <isthmus/backend.h>

#include <barrier>
#include <cstring>
#include <vector>

namespace isthmus::p2p {

class local_contexts {
 public:
  local_contexts(int n, const isthmus_device* devices, double timeout_s)
      : m_barrier(n), m_zeros(static_cast<std::size_t>(n), 0), m_seats(static_cast<std::size_t>(n)) {
    for (int rank = 0; rank < n; ++rank) {
      seat& seat = m_seats[static_cast<std::size_t>(rank)];
      seat.all = this;
      isthmus_backend_context& context = seat.context;
      context.struct_bytes = sizeof context;
      context.runtime = &seat;
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
    return m_seats[static_cast<std::size_t>(rank)].context;
  }

 private:
  struct seat {
    local_contexts* all;
    isthmus_backend_context context{};
    const void* mine;
  };

  // Every rank in a thread of its own. What a rank brings stays readable until all have copied it.
  static isthmus_status allgather(void* runtime, const void* mine, void* all, std::size_t bytes) {
    auto& own = *static_cast<seat*>(runtime);
    own.mine = mine;
    own.all->m_barrier.arrive_and_wait();
    auto* to = static_cast<std::byte*>(all);
    for (const seat& seat : own.all->m_seats) {
      std::memcpy(to, seat.mine, bytes);
      to += bytes;
    }
    own.all->m_barrier.arrive_and_wait();
    return ISTHMUS_SUCCESS;
  }

  static const char* no_option(void*, const char*) { return nullptr; }

  std::barrier<> m_barrier;
  std::vector<int> m_zeros;
  std::vector<seat> m_seats;
};

}  // namespace isthmus::p2p
