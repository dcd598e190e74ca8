// Reductions on devices, for nodes on which several ranks of one platform each have a device. The devices of a
// node reduce first, with a fast backend; the shards are then reduced between nodes on the host; finally the
// devices distribute the result. Each device copies only its shard to the host, not the whole message.
//
// A "node" of this class is the set of ranks of one node and platform. Nodes on the host platform take part
// like any other.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/pipeline.hpp"

namespace isthmus::hierarchical {

class device_reducer {
 public:
  // Collective. `result` stays empty, with the reason in the log, if no node has several devices or no
  // backend serves them.
  // Errors: returns the status of a failure that has been reported.
  static isthmus_status create(const isthmus_backend_context& context, std::uint64_t chunk_bytes,
                               std::unique_ptr<device_reducer>& result);

  // Equal on all ranks. Types that need rounding are excluded: host_staging rounds their sums only once.
  bool supports(const isthmus_operation& operation) const;
  // The caller must have waited for the operation's stream. Errors: throws subcommunicator_failure or error.
  void run(const isthmus_operation& operation, shard_mode mode) { run_reduction(m_hierarchy, operation, mode); }
  std::string plan(const isthmus_operation& operation, shard_mode mode) const {
    return plan_steps(m_hierarchy, operation, mode);
  }
  void abort() const noexcept { m_hierarchy.comms.abort(); }

 private:
  // One bit per reduction operation, by datatype.
  using support_table = std::array<std::uint32_t, ISTHMUS_DATATYPE_COUNT>;

  device_reducer(const isthmus_backend_context& context, std::vector<int> node_of)
      : m_hierarchy(context, std::move(node_of)) {}
  isthmus_status create_parts();
  isthmus_status open_device();
  isthmus_status agree_on_support();
  support_table local_support() const;
  bool is_supported_locally(isthmus_datatype datatype, isthmus_reduction_op op) const;

  node_hierarchy m_hierarchy;
  support_table m_supported{};
};

}  // namespace isthmus::hierarchical
