// The subcommunicators of the hierarchical backend, and the assignment of ranks to them. Each subcommunicator uses the
// backends that its rules select.
#pragma once

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::hierarchical {

// A range of consecutive positions.
struct index_range {
  int begin = 0, count = 0;
};

// Each node has as many leaders as the smallest node has ranks. Leader h communicates with leader h of all
// other nodes. The leader of rank i of a node is i modulo the number of leaders. A "node" can also be the ranks
// of one node and platform (device_reducer).
class rank_layout {
 public:
  // `node_of[r]` is the node of rank r, numbered from 0.
  rank_layout(int rank, std::vector<int> node_of);

  int rank() const { return m_rank; }
  int size() const { return static_cast<int>(m_node_of.size()); }
  int nodes() const { return static_cast<int>(m_members.size()); }
  int leaders() const { return m_leaders; }
  bool is_even() const { return m_is_even; }  // all nodes have the same size, so all ranks are leaders

  const std::vector<int>& members(int node) const { return m_members[static_cast<std::size_t>(node)]; }
  int node_of(int rank) const { return m_node_of[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return m_index_of[static_cast<std::size_t>(rank)]; }  // within its node

  int own_node() const { return node_of(m_rank); }
  int own_index() const { return index_of(m_rank); }
  int own_node_size() const { return static_cast<int>(members(own_node()).size()); }
  bool is_leader() const { return own_index() < m_leaders; }
  int leader_of(int rank) const { return index_of(rank) % m_leaders; }

  // All ranks, ordered by (leader, node, rank). The ranks of one leader are contiguous. Among them, the ranks
  // of one node are contiguous.
  const std::vector<int>& order() const { return m_order; }
  int position_of(int rank) const { return m_position_of[static_cast<std::size_t>(rank)]; }
  index_range leader_range(int leader, int node) const;

  // The ranks of a node in groups of one rank per leader. The last group can be smaller, and later ones are empty.
  int group_count(int node) const {
    return (static_cast<int>(members(node).size()) + m_leaders - 1) / m_leaders;
  }
  int largest_group_count() const;
  std::span<const int> group(int node, int index) const;

 private:
  int m_rank;
  int m_leaders = 0;
  bool m_is_even = true;
  std::vector<std::vector<int>> m_members;
  std::vector<int> m_node_of, m_index_of, m_order, m_position_of;
};

// A call on a subcommunicator failed. `details` is its error. Failed ranks are numbered as in the parent.
struct subcommunicator_failure : std::runtime_error {
  subcommunicator_failure(const std::string& text, const isthmus_error_info& failure,
                          std::vector<int> ranks = {})
      : std::runtime_error(text), details(failure), failed_ranks(std::move(ranks)) {}
  isthmus_error_info details;
  std::vector<int> failed_ranks;
};

// Reports the failure to the runtime.
isthmus_status report(const isthmus_backend_context& context, const subcommunicator_failure& failure);

// A communicator of some of the ranks. It is empty on ranks that are not members.
class subcommunicator {
 public:
  subcommunicator() = default;
  // Collective over all ranks: ranks with the same color >= 0 form a subcommunicator. `option` names the option
  // with its rule. Errors: returns the status of a failure that has been reported.
  isthmus_status create(const isthmus_backend_context& context, int color, int key, const char* option,
                        std::string name) {
    return create(context, context.device, color, key, option, std::move(name));
  }
  // Creates the subcommunicator on a different device from that of the parent.
  isthmus_status create(const isthmus_backend_context& context, isthmus_device device, int color, int key,
                        const char* option, std::string name);
  subcommunicator(const subcommunicator&) = delete;
  subcommunicator& operator=(const subcommunicator&) = delete;
  ~subcommunicator();

  bool is_member() const { return m_handle != nullptr; }
  const std::string& name() const { return m_name; }
  // Returns true if a backend supports the operation.
  bool supports(const isthmus_operation& operation) const;
  // Errors: run, check and explain throw subcommunicator_failure.
  void run(const isthmus_operation& operation) const;
  // Reports asynchronous failures of a non-blocking backend.
  void check() const;
  void explain(const isthmus_operation& operation, std::string& json) const;
  // Thread safety: any thread, at any time.
  void abort() const noexcept;

 private:
  [[noreturn]] void fail() const;

  isthmus_communicator m_handle = nullptr;
  std::string m_name;  // members as ranks of the parent, for errors and plans
};

// Returns "", or the reason why the subcommunicator does not support all of the collectives. The check uses one
// datatype, because a backend for host memory supports either all datatypes and operations or none.
// Errors: throws subcommunicator_failure.
std::string find_unsupported(const subcommunicator& operation, std::span<const isthmus_collective> collectives);

struct subcommunicators {
  subcommunicator intra_node;      // the ranks of this rank's node, ordered by index
  subcommunicator inter_node;      // the leaders with this rank's index, ordered by node; empty on other ranks
  subcommunicator all_ranks_comm;  // all ranks, in the order of the parent

  // Collective. Creates all three and verifies that they support the collectives that this backend uses.
  isthmus_status create(const isthmus_backend_context& context, const rank_layout& layout);
  // Collective. Creates the first two only: intra_node on the devices of the ranks, inter_node on the host.
  isthmus_status create_for_devices(const isthmus_backend_context& context, const rank_layout& layout);
  void abort() const noexcept;
};

// Runs send and recv calls as one group, because they depend on each other.
// Errors: throws subcommunicator_failure.
class message_batch {
 public:
  message_batch();
  ~message_batch();
  message_batch(const message_batch&) = delete;
  message_batch& operator=(const message_batch&) = delete;
  void finish();

 private:
  bool m_open = true;
};

}  // namespace isthmus::hierarchical
