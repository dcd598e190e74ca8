// The communicators that islands works on, each with the backends that the rules choose for it.
#pragma once

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/islands/layout.hpp"

namespace isthmus::hierarchical {

// A call on a part has failed; `details` are its own. `culprits` are ranks of the whole.
struct part_failure : std::runtime_error {
  part_failure(const std::string& text, const isthmus_error_info& failure, std::vector<int> ranks = {})
      : std::runtime_error(text), details(failure), culprits(std::move(ranks)) {}
  isthmus_error_info details;
  std::vector<int> culprits;
};

// For the runtime to know.
isthmus_status report(const isthmus_backend_context& context, const part_failure& failure);

// One communicator of some of the ranks; none where this rank has no part in it.
class part {
 public:
  part() = default;
  // Collective over all ranks: those with one color >= 0 form a part, `ranks`. Success, or the failure that the
  // runtime has reported.
  isthmus_status make(const isthmus_backend_context& context, int color, int key, const char* option,
                      std::string name) {
    return make(context, context.device, color, key, option, std::move(name));
  }
  // The same with the ranks on another device than the whole's.
  isthmus_status make(const isthmus_backend_context& context, isthmus_device device, int color, int key,
                      const char* option, std::string name);
  part(const part&) = delete;
  part& operator=(const part&) = delete;
  ~part();

  bool exists() const { return m_handle != nullptr; }
  const std::string& name() const { return m_name; }
  // Whether a backend can do it.
  bool can(const isthmus_operation& operation) const;
  // These throw part_failure.
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
// operations, or none. Throws part_failure.
std::string lack_of(const part& asked, std::span<const isthmus_collective> collectives);

struct parts {
  part within;   // the ranks of this rank's island, by index
  part between;  // the holders of this rank's index, by island; of holders alone
  part across;   // all ranks, with the same numbers

  // Collective. Makes them, and sees to it that they can do what is asked of them.
  isthmus_status make(const isthmus_backend_context& context, const layout& ranks);
  // The first two alone, `within` on the ranks' own devices and `between` on the host.
  isthmus_status make_for_devices(const isthmus_backend_context& context, const layout& ranks);
  void abort() const noexcept;
};

// Runs several calls as one group (send and recv, which need each other). Throws part_failure.
class message_group {
 public:
  message_group();
  ~message_group();
  message_group(const message_group&) = delete;
  message_group& operator=(const message_group&) = delete;
  void finish();

 private:
  bool m_open = true;
};

}  // namespace isthmus::hierarchical
