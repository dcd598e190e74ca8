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

#include "backends/islands/composer.hpp"
#include "backends/islands/pipeline.hpp"

namespace isthmus::hierarchical {

class device_sums {
 public:
  // Collective. `made` stays empty, with the reason in the log, where there is no such island or nothing fast
  // for it. Success, or the failure that the runtime has reported.
  static isthmus_status create(const isthmus_backend_context& context, std::uint64_t chunk_bytes,
                             std::unique_ptr<device_sums>& made);

  // Equal on all ranks. What is rounded goes through the host: there it is rounded once.
  bool serves(const isthmus_operation& operation) const;
  // The caller has waited for the operation's stream. Throws subcommunicator_failure, or error.
  void run(const isthmus_operation& operation, cut how) { run_reduction(m_hierarchy, operation, how); }
  std::string plan(const isthmus_operation& asked, cut how) const { return plan_of(m_hierarchy, asked, how); }
  void abort() const noexcept { m_hierarchy.comms.abort(); }

 private:
  // A bit for each operation, by datatype.
  using abilities = std::array<std::uint32_t, ISTHMUS_DATATYPE_COUNT>;

  device_sums(const isthmus_backend_context& context, std::vector<int> node_of)
      : m_hierarchy(context, std::move(node_of)) {}
  isthmus_status make_parts();
  isthmus_status open_device();
  isthmus_status agree_on_abilities();
  abilities own_abilities() const;
  bool can(isthmus_datatype datatype, isthmus_reduction_op op) const;

  node_hierarchy m_hierarchy;
  abilities m_can{};
};

}  // namespace isthmus::hierarchical
