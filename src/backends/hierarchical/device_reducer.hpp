// Sums of ranks on devices where several of one node and platform have a device each: first among those by what
// is fast there, then between them on the host, then among them again, each rank holding a shard on the way. So
// each device brings a part of the message to the host, not all of it.
//
// Islands are the ranks of one node and platform; those on the host are composed like any others.
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
  // Collective. `made` stays empty, with the reason in the log, where there is no such island or nothing fast
  // for it. Success, or the failure that the runtime has reported.
  static isthmus_status create(const isthmus_backend_context& context, std::uint64_t chunk_bytes,
                             std::unique_ptr<device_reducer>& made);

  // Equal on all ranks. What is rounded goes through the host: there it is rounded once.
  bool serves(const isthmus_operation& operation) const;
  // The caller has waited for the operation's stream. Throws subcommunicator_failure, or error.
  void run(const isthmus_operation& operation, shard_mode mode) { run_reduction(m_hierarchy, operation, mode); }
  std::string plan(const isthmus_operation& operation, shard_mode mode) const { return plan_steps(m_hierarchy, operation, mode); }
  void abort() const noexcept { m_hierarchy.comms.abort(); }

 private:
  // A bit for each operation, by datatype.
  using support_table = std::array<std::uint32_t, ISTHMUS_DATATYPE_COUNT>;

  device_reducer(const isthmus_backend_context& context, std::vector<int> node_of)
      : m_hierarchy(context, std::move(node_of)) {}
  isthmus_status make_parts();
  isthmus_status open_device();
  isthmus_status agree_on_support();
  support_table local_support() const;
  bool can(isthmus_datatype datatype, isthmus_reduction_op op) const;

  node_hierarchy m_hierarchy;
  support_table m_supported{};
};

}  // namespace isthmus::hierarchical
