// Barrier for the calls of one communicator's ranks in this process (isthmus_communicator_options::starts_together).
#pragma once

#include <isthmus/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bootstrap/membership.hpp"

namespace isthmus {

// A rank announces each operation twice: when it has been called, and when it has been started. In between, and
// before it returns, the rank waits for the announcements of its peers. Peers are all ranks of this process for a
// collective, and the other rank of a message.
//
// Ranks may put the same operations into different groups: one rank calls two collectives in one group, and
// another calls one after the other. Therefore a group starts as soon as the peers of one of its operations have
// made the call, and only then waits until all of its operations have started everywhere.
class start_barrier {
 public:
  enum phase : std::uint8_t { called, started };

  explicit start_barrier(const membership& ranks);

  void announce(phase reached, const isthmus_operation* operations, std::size_t n);

  // The state of the announced operations, until forget().
  bool has_any_peers() const noexcept { return !m_awaited.empty(); }
  bool is_any_met() const noexcept;
  bool are_all_met() const noexcept;

  struct missing_peers {
    isthmus_collective collective;
    std::vector<int> ranks;
  };
  missing_peers missing() const;  // of the first operation whose peers are missing; empty: none
  void forget() noexcept { m_awaited.clear(); }

 private:
  struct alignas(64) counter {
    std::atomic<std::uint64_t> value{0};
  };
  struct shared_state;
  // Announcements of peers: `n` counters, of members `first_member` and following, that must reach `count`.
  struct awaited {
    isthmus_collective collective;
    const counter* counters;
    std::size_t first_member, n;
    std::uint64_t count;
    bool is_met() const noexcept;
  };

  std::shared_ptr<shared_state> m_state;
  std::vector<int> m_members;  // the ranks of this process
  std::size_t m_index = 0;     // of this rank among them
  std::vector<awaited> m_awaited;
};

}  // namespace isthmus
