// The subcommunicators of the hierarchical backend. Each subcommunicator uses the backends that
// its rules select.
#pragma once

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/hierarchical/rank_layout.hpp"

namespace isthmus::hierarchical {

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
