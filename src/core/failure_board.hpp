// A page of shared memory for each rank of a machine, in which it writes why it failed (bootstrap/peer_monitor.hpp):
// ranks in other processes learn of the cause from there at once, without a store or a message.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "bootstrap/peer_monitor.hpp"
#include "memory/segment.hpp"

namespace isthmus {

class failure_board {
 public:
  // Collective. Where a rank has no page, or it can't be reached, the bootstrap alone carries failures.
  void share(bootstrap& control, const membership& ranks);
  // Once all ranks have called share: nobody opens the page any more.
  void end_sharing();

  // This rank has destroyed its communicator: it may end without harm to the others.
  void leave() noexcept;
  // A rank of another process that ended before it had left.
  std::optional<int> find_lost() const noexcept { return m_peers.find_lost(); }

 private:
  std::shared_ptr<shared_segment> m_own_page;
  std::vector<std::shared_ptr<shared_segment>> m_pages;  // by rank; empty where it can't be reached
  peer_monitor m_peers{0, 0};                                 // nobody where all are in one process
};

}  // namespace isthmus
