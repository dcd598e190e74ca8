// Resolver of failures: answers which ranks failed, and why. It uses the health records and flight recorders of
// this node and the answers of ranks on other nodes.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus {

class resolver {
 public:
  // `peers` monitors the ranks in other processes of this node.
  // Lifetime: the referenced objects must outlive the resolver.
  resolver(bootstrap& control, const membership& ranks, const peer_monitor& peers, double timeout_s)
      : m_control(control), m_ranks(ranks), m_peers(peers), m_timeout_s(timeout_s) {}

  // For a communicator that a backend of another one created: failed ranks are then ranks of the parent, and only
  // the parent queries other ranks.
  void set_subcommunicator() { m_is_subcommunicator = true; }

  // Sets the failed ranks of `failure` to `ranks` of this communicator.
  void attribute(failure_info& failure, std::span<const int> ranks) const;
  std::vector<int> to_parent_ranks(std::span<const int> ranks) const;

  // Adds the diagnosis of this node to the message of a timeout or a lost rank. If a rank has exited, also adds
  // it to the message of a native library. Other failures are returned unchanged.
  failure_info with_diagnosis(failure_info failure) const noexcept;
  // Adds the rank that this one is blocked on, if any, to the message of an abort. Without it, the error of an
  // external watchdog that times out would not name that rank.
  failure_info with_abort_diagnosis(failure_info failure) const noexcept;

  // Returns true if failed ranks must be queried. On a single node, the flight recorders show which ranks wait.
  bool should_query_peers() const noexcept;
  // Removes the ranks that report an abort from the failed ranks of `failure`, adds the ranks on the nodes of the
  // missing ranks that do not respond either, and puts both into its message. Returns false if all ranks report, because another rank then knows the root cause.
  // Precondition: should_query_peers(), and this rank has aborted.
  // Blocking: for a share of the timeout.
  bool remove_reporting_ranks(failure_info& failure) const noexcept;
  // Returns how long a rank that timed out waits for reports of its peers, which started to wait at about
  // the same time.
  double report_wait_s() const noexcept;

 private:
  using clock = std::chrono::steady_clock;
  enum class peer_status { aborted, present };  // expected from a peer

  recorder::diagnosis diagnose() const noexcept;
  void attribute_diagnosis(failure_info& failure, const recorder::diagnosis& findings) const;
  void add_process_failure(failure_info& failure) const;
  std::vector<int> unresponsive_node_peers(const std::vector<int>& missing_ranks, isthmus_status status) const;
  std::vector<int> find_unresponsive(const std::vector<int>& ranks, peer_status expected_status,
                                     clock::time_point deadline, bool& can_query) const;
  bool is_in_same_call(int rank) const;
  std::vector<int> ranks_except(const std::vector<int>& ranks) const;  // this rank is also excluded
  bool is_on_this_node(int rank) const {
    return m_ranks.rank_processes[static_cast<std::size_t>(rank)].pid != 0;
  }
  std::optional<bool> has_aborted(int rank, double wait_s) const noexcept;
  std::optional<bool> has_reported(int rank, peer_status expected_status, double wait_s) const noexcept;

  bootstrap& m_control;
  const membership& m_ranks;
  const peer_monitor& m_peers;
  double m_timeout_s;
  bool m_is_subcommunicator = false;
};

}  // namespace isthmus
