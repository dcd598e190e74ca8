#include <algorithm>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <map>
#include <utility>
#include <vector>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/host_staging.hpp"
#include "base/elements.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// The platforms whose streams the core can create and wait for.
bool has_streams(int platform) { return platform == ISTHMUS_PLATFORM_CUDA || platform == ISTHMUS_PLATFORM_HIP; }

struct rank_location {
  std::int32_t platform = 0;
  std::array<char, 64> bus_id{};  // of the device; "" on the host or if it is unknown

  bool operator==(const rank_location&) const = default;
};

rank_location own_location(const isthmus_backend_context& context) {
  rank_location own;
  own.platform = context.device.platform;
  std::string reason;
  if (!has_streams(own.platform)) return own;
  try {
    if (device_driver* const driver = device_driver::get(context.device.platform, reason)) {
      const std::string bus = driver->bus_id(context.device.ordinal);
      std::strncpy(own.bus_id.data(), bus.c_str(), own.bus_id.size() - 1);
    }
  } catch (const error& failure) {  // assume that this rank shares its device
    context.log(context.runtime, 1, "the bus id of the device is unknown: %s", failure.what());
  }
  return own;
}

// Numbers the groups of ranks with equal node and platform.
std::vector<int> group_by_node_and_platform(const isthmus_backend_context& context,
                                            const std::vector<rank_location>& locations) {
  std::map<std::pair<int, int>, int> numbers;
  std::vector<int> node_of;
  for (std::size_t rank = 0; rank < locations.size(); ++rank) {
    const auto next = static_cast<int>(numbers.size());
    node_of.push_back(
        numbers.try_emplace({context.node_of[rank], locations[rank].platform}, next).first->second);
  }
  return node_of;
}

// Returns "" if reducing on devices is faster on some node, otherwise the reason why it is not. Ranks that
// share a device run one after the other, so they gain nothing. The option intra_node overrides this.
std::string find_unsupported_reason(const rank_layout& layout, const std::vector<rank_location>& locations,
                                    bool may_share) {
  bool has_shared_node = false;
  for (int node = 0; node < layout.nodes(); ++node) {
    const auto& members = layout.members(node);
    const auto platform = locations[static_cast<std::size_t>(members[0])].platform;
    if (platform == ISTHMUS_PLATFORM_HOST || members.size() < 2) continue;
    if (!has_streams(platform))
      return fmt::format("several devices of platform {}, whose streams are SYCL queues of the program",
                         isthmus_platform_name(static_cast<isthmus_platform>(platform)));
    has_shared_node = true;
    for (std::size_t a = 0; a < members.size() && !may_share; ++a)
      for (std::size_t b = a + 1; b < members.size(); ++b)
        if (locations[static_cast<std::size_t>(members[a])] == locations[static_cast<std::size_t>(members[b])])
          return fmt::format("ranks {} and {} share a device", members[a], members[b]);
  }
  if (!has_shared_node) return "no node has several devices of one platform";
  return layout.nodes() > 1 ? "" : "all ranks are on one node, and on one platform";
}

}  // namespace

isthmus_status device_reducer::create(const isthmus_backend_context& context, std::uint64_t chunk_bytes,
                                      std::unique_ptr<device_reducer>& result) {
  const rank_location own = own_location(context);
  std::vector<rank_location> locations(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &own, locations.data(), sizeof own)) return status;
  std::unique_ptr<device_reducer> reducer(
      new device_reducer(context, group_by_node_and_platform(context, locations)));
  reducer->m_hierarchy.chunk_bytes = chunk_bytes;
  reducer->m_hierarchy.overlaps = can_overlap(context);
  const bool may_share = context.option(context.runtime, "intra_node") != nullptr;
  if (const std::string reason = find_unsupported_reason(reducer->m_hierarchy.layout, locations, may_share);
      !reason.empty()) {
    context.log(context.runtime, 0, "all reductions run on the host: %s", reason.c_str());
    return ISTHMUS_SUCCESS;
  }
  const isthmus_status status = reducer->create_parts();
  if (status == ISTHMUS_SUCCESS) result = std::move(reducer);
  if (status != ISTHMUS_ERROR_UNSUPPORTED) return status;
  context.log(context.runtime, 1,
              "all reductions run on the host: no backend reduces among the devices of a node");
  return ISTHMUS_SUCCESS;
}

isthmus_status device_reducer::create_parts() {
  if (const auto status = m_hierarchy.comms.create_for_devices(*m_hierarchy.context, m_hierarchy.layout))
    return status;
  if (const auto status = with_driver(*m_hierarchy.context, [this](device_driver* driver) {
        if (driver != nullptr)
          m_hierarchy.device =
              std::make_unique<device_staging>(*m_hierarchy.context, *driver, m_hierarchy.comms.intra_node);
      }))
    return status;
  return agree_on_support();
}

// A subcommunicator on the host supports all reductions or none. Without an inter-node subcommunicator, only
// the local support counts.
isthmus_status device_reducer::agree_on_support() {
  constexpr std::array required_inter_node = {reduce_scatter_phase, reduce_scatterv_phase, allreduce_phase,
                                              reduce_phase};
  vote<support_table> own_vote;
  if (const std::string unsupported = find_unsupported(m_hierarchy.comms.inter_node, required_inter_node);
      !unsupported.empty())
    own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, unsupported, "");
  own_vote.value = local_support();
  votes<support_table> all;
  if (const auto status = agree(*m_hierarchy.context, ISTHMUS_HERE, own_vote, all)) return status;
  m_supported.fill(~0U);
  bool is_any_supported = false;
  for (std::size_t datatype = 0; datatype < m_supported.size(); ++datatype) {
    for (const auto& each : all) m_supported[datatype] &= each.value[datatype];
    is_any_supported = is_any_supported || m_supported[datatype] != 0;
  }
  return is_any_supported ? ISTHMUS_SUCCESS
                          : m_hierarchy.context->fail(m_hierarchy.context->runtime, ISTHMUS_ERROR_UNSUPPORTED,
                                                      0, ISTHMUS_HERE, nullptr,
                                                      "no backend reduces among the devices of a node");
}

device_reducer::support_table device_reducer::local_support() const {
  support_table own{};
  own.fill(~0U);
  if (!m_hierarchy.device) return own;
  for (std::size_t datatype = 0; datatype < own.size(); ++datatype)
    for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op)
      if (!is_supported_locally(static_cast<isthmus_datatype>(datatype), static_cast<isthmus_reduction_op>(op)))
        own[datatype] &= ~(1U << op);
  return own;
}

// Checks the sizes of one element and one chunk, because rules can select by size.
bool device_reducer::is_supported_locally(isthmus_datatype datatype, isthmus_reduction_op op) const {
  const std::uint64_t max_elements = m_hierarchy.chunk_bytes / bytes_of(datatype);
  const auto node_size = static_cast<std::uint64_t>(m_hierarchy.layout.own_node_size());
  for (const isthmus_collective collective :
       {allreduce_phase, reduce_scatter_phase, allgather_phase, broadcast_phase})
    for (std::uint64_t count : {std::uint64_t{1}, max_elements}) {
      isthmus_operation operation{};
      operation.collective = collective;
      operation.datatype = datatype;
      operation.op = partial_op(op);
      const bool has_blocks = collective == reduce_scatter_phase || collective == allgather_phase;
      operation.count = std::max<std::uint64_t>(1, has_blocks ? count / node_size : count);
      if (!m_hierarchy.comms.intra_node.supports(operation)) return false;
    }
  return true;
}

bool device_reducer::supports(const isthmus_operation& operation) const {
  const collective_row& row = row_of(operation.collective);
  if (!row.is_reduction || has_counts(row)) return false;
  if (row.send_extent != extent::count && !m_hierarchy.layout.is_even()) return false;
  return accumulation_type(operation.datatype, operation.op) == operation.datatype &&
         (m_supported[static_cast<std::size_t>(operation.datatype)] >> operation.op & 1U) != 0;
}

}  // namespace isthmus::hierarchical
