// The communicators that islands works on, each with the backends that the rules choose for it.
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

// A call on a part has failed; `details` are its own. `culprits` are ranks of the whole.
struct subcommunicator_failure : std::runtime_error {
  subcommunicator_failure(const std::string& text, const isthmus_error_info& failure, std::vector<int> ranks = {})
      : std::runtime_error(text), details(failure), culprits(std::move(ranks)) {}
  isthmus_error_info details;
  std::vector<int> culprits;
};

// For the runtime to know.
isthmus_status report(const isthmus_backend_context& context, const subcommunicator_failure& failure);

// One communicator of some of the ranks; none where this rank has no part in it.
class subcommunicator {
 public:
  subcommunicator() = default;
  // Collective over all ranks: those with one color >= 0 form a part, `ranks`. Success, or the failure that the
  // runtime has reported.
  isthmus_status create(const isthmus_backend_context& context, int color, int key, const char* option,
                      std::string name) {
    return create(context, context.device, color, key, option, std::move(name));
  }
  // The same with the ranks on another device than the whole's.
  isthmus_status create(const isthmus_backend_context& context, isthmus_device device, int color, int key,
                      const char* option, std::string name);
  subcommunicator(const subcommunicator&) = delete;
  subcommunicator& operator=(const subcommunicator&) = delete;
  ~subcommunicator();

  bool exists() const { return m_handle != nullptr; }
  const std::string& name() const { return m_name; }
  // Whether a backend can do it.
  bool can(const isthmus_operation& operation) const;
  // These throw subcommunicator_failure.
  void run(const isthmus_operation& operation) const;
  // What went wrong since, where its backend does not block.
  void check() const;
  void explain(const isthmus_operation& operation, std::string& json) const;
  // Any thread, any time.
  void abort() const noexcept;

 private:
  [[noreturn]] void fail() const;

  isthmus_communicator m_handle = nullptr;
  std::string m_name;  // whom it joins, in the numbers of the whole: for errors and plans
};

// Why the part can't do all of these; "" when it can. Backends of host memory know all datatypes and
// operations, or none. Throws subcommunicator_failure.
std::string find_unsupported(const subcommunicator& operation, std::span<const isthmus_collective> collectives);

struct subcommunicators {
  subcommunicator intra_node;   // the ranks of this rank's island, by index
  subcommunicator inter_node;  // the holders of this rank's index, by island; of holders alone
  subcommunicator all_ranks_comm;   // all ranks, with the same numbers

  // Collective. Makes them, and sees to it that they can do what is asked of them.
  isthmus_status create(const isthmus_backend_context& context, const rank_layout& layout);
  // The first two alone, `within` on the ranks' own devices and `between` on the host.
  isthmus_status create_for_devices(const isthmus_backend_context& context, const rank_layout& layout);
  void abort() const noexcept;
};

// Runs several calls as one group (send and recv, which need each other). Throws subcommunicator_failure.
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
