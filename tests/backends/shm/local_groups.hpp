// Groups of ranks of this process, with real segments and without a runtime.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/node_group.hpp"

namespace shm_test {

// Thrown by a rank that waits, because no other thread could end its wait.
struct wait_without_end {};

class local_groups {
 public:
  explicit local_groups(int ranks) : m_process_of(static_cast<std::size_t>(ranks)) {
    const isthmus::shm::geometry slot_geometry{
        .slot_bytes = 4096, .packet_lines = 4, .depth = 8, .cell_bytes = 64, .cells = 2};
    std::vector<std::shared_ptr<isthmus::shared_segment>> segments;
    for (int r = 0; r < ranks; ++r)
      segments.push_back(isthmus::shared_segment::create(
          isthmus::shm::segment_layout(slot_geometry, ranks).bytes(), isthmus::segment_use::internal));
    for (int r = 0; r < ranks; ++r) {
      isthmus_backend_context context{};
      context.rank = r;
      context.size = context.process_size = ranks;
      context.process_of = m_process_of.data();
      context.set_awaited_rank = [](void*, int) {};
      context.progress = [](void*) -> int { throw wait_without_end{}; };
      isthmus::shm::segment_connection connection;
      connection.sizes = slot_geometry;
      connection.parameters = {.spins = 1'000'000, .streaming_bytes = 0, .address_bytes = 0};
      connection.segments = segments;
      m_groups.push_back(std::make_unique<isthmus::shm::node_group>(context, std::move(connection)));
    }
  }

  isthmus::shm::node_group& operator[](int rank) { return *m_groups[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(m_groups.size()); }

 private:
  std::vector<int> m_process_of;
  std::vector<std::unique_ptr<isthmus::shm::node_group>> m_groups;
};

}  // namespace shm_test
