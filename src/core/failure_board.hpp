// Failure notices in shared memory: each rank of a node has its own page, in which it publishes its failure
// (bootstrap/peer_monitor.hpp). Ranks in other processes read the root cause there immediately, without a store
// or a message.
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
  // Collective. If a rank has no reachable page, its failures are published only through the bootstrap.
  void share(bootstrap& control, const membership& ranks);
  // Closes the page's descriptor. Ordering: call it after all ranks have called share(), because no rank opens
  // the page afterwards.
  void end_sharing();

  // Marks this rank's communicator as destroyed: its process may then exit without being reported as lost.
  void leave() noexcept;
  // Returns a rank of another process that exited before it called leave().
  std::optional<int> find_lost() const noexcept { return m_peers.find_lost(); }

 private:
  std::shared_ptr<shared_segment> m_own_page;
  std::vector<std::shared_ptr<shared_segment>> m_pages;  // by rank; empty if unreachable
  peer_monitor m_peers{0, 0};                            // empty if all ranks are in one process
};

}  // namespace isthmus
