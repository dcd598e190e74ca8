// Collectives of ranks on devices of one or several platforms. Data is staged in host memory, and a
// communicator of all ranks operates on it. Some reductions use device_reducer instead.
//
// Every rank makes the same calls on the host communicator: ranks on the host platform pass the caller's
// buffers, ranks on devices pass the pinned memory of a staging pipeline.
//
// Blocking: a call first waits for its stream, and its results are complete when it returns.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/pipeline.hpp"
#include "backends/hierarchical/subcommunicators.hpp"
#include "device/staging_pipeline.hpp"

namespace isthmus::hierarchical {

// Reductions on devices, for nodes on which several ranks of one platform each have a device. The devices of a
// node reduce first, with a fast backend; the shards are then reduced between nodes on the host; finally the
// devices distribute the result. Each device copies only its shard to the host, not the whole message.
//
// A "node" of this class is the set of ranks of one node and platform. Nodes on the host platform take part
// like any other.
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
  isthmus_status agree_on_support();
  support_table local_support() const;
  bool is_supported_locally(isthmus_datatype datatype, isthmus_reduction_op op) const;

  node_hierarchy m_hierarchy;
  support_table m_supported{};
};

// Collective. Calls `use` with the driver of this rank's device, or with NULL if the rank is on the host.
// Errors: returns the status of a failure that has been reported.
isthmus_status with_driver(const isthmus_backend_context& context,
                           const std::function<void(device_driver* driver)>& use);

class host_staging final : private staging_transport {
 public:
  // `shard_mode_of` translates the index of an algorithm.
  host_staging(const isthmus_backend_context& context, shard_mode (*shard_mode_of)(int algorithm))
      : m_context(context), m_shard_mode_of(shard_mode_of) {}

  // has_devices: some rank has a device. is_mixed: the ranks are on several platforms.
  struct platforms {
    bool has_devices = false, is_mixed = false;
  };
  // Collective.
  static isthmus_status detect_platforms(const isthmus_backend_context& context, platforms& result);

  // Collective. Errors: returns the status of a failure that has been reported.
  isthmus_status create(std::uint64_t chunk_bytes);
  // Runs the operations of one enqueue. Errors: throws subcommunicator_failure or error.
  void run(const isthmus_operation* operations, const int* algorithms, std::size_t n);
  std::string plan(const isthmus_operation& operation, int algorithm) const;
  void abort() const noexcept;

 private:
  void run(const isthmus_operation& step) override { m_host_comm.run(step); }
  void start_messages(std::span<const isthmus_operation> messages) override;
  void finish_messages() override {}  // start_messages runs them to completion

  const isthmus_backend_context& m_context;
  shard_mode (*m_shard_mode_of)(int algorithm);
  std::uint64_t m_chunk_bytes = 0;
  subcommunicator m_host_comm;
  std::optional<staging_pipeline> m_pipeline;
  std::unique_ptr<device_reducer> m_reducer;  // set if ranks of one node and platform reduce on their devices
};

}  // namespace isthmus::hierarchical
