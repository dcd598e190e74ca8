#include "backends/hierarchical/device_reducer.hpp"

#include <algorithm>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <map>
#include <utility>
#include <vector>

#include "backends/hierarchical/convert.hpp"
#include "backends/hierarchical/phases.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// The core waits for the streams of these platforms, and makes its own there.
bool has_streams(int platform) { return platform == ISTHMUS_PLATFORM_CUDA || platform == ISTHMUS_PLATFORM_HIP; }

struct place {
  std::int32_t platform = 0;
  std::array<char, 64> bus{};  // of the device; "" on the host, and where the driver can't tell

  bool operator==(const place&) const = default;
};

place own_place(const isthmus_backend_context& context) {
  place own;
  own.platform = context.device.platform;
  std::string reason;
  if (!has_streams(own.platform)) return own;
  try {
    if (device_driver* const driver = device_driver::get(context.device.platform, reason)) {
      const std::string bus = driver->bus_id(context.device.ordinal);
      std::strncpy(own.bus.data(), bus.c_str(), own.bus.size() - 1);
    }
  } catch (const error& failure) {  // taken for one of several on its device
    context.log(context.runtime, 1, "the device's bus is unknown: %s", failure.what());
  }
  return own;
}

// By node and platform.
std::vector<int> group_by_node_and_platform(const isthmus_backend_context& context, const std::vector<place>& all) {
  std::map<std::pair<int, int>, int> numbers;
  std::vector<int> node_of;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto next = static_cast<int>(numbers.size());
    node_of.push_back(numbers.try_emplace({context.node_of[rank], all[rank].platform}, next).first->second);
  }
  return node_of;
}

// Why no island of devices gains by summing among itself; "" where one does. Ranks that share a device take
// turns on it; a rule for the parts within islands asks for it all the same.
std::string obstacle(const rank_layout& layout, const std::vector<place>& all, bool may_share) {
  bool found = false;
  for (int node = 0; node < layout.nodes(); ++node) {
    const auto& members = layout.members(node);
    const auto platform = all[static_cast<std::size_t>(members[0])].platform;
    if (platform == ISTHMUS_PLATFORM_HOST || members.size() < 2) continue;
    if (!has_streams(platform))
      return fmt::format("several devices of platform {}, whose streams are a SYCL program's queues",
                         isthmus_platform_name(static_cast<isthmus_platform>(platform)));
    found = true;
    for (std::size_t a = 0; a < members.size() && !may_share; ++a)
      for (std::size_t b = a + 1; b < members.size(); ++b)
        if (all[static_cast<std::size_t>(members[a])] == all[static_cast<std::size_t>(members[b])])
          return fmt::format("ranks {} and {} share a device", members[a], members[b]);
  }
  if (!found) return "no node has several devices of one platform";
  return layout.nodes() > 1 ? "" : "all ranks are on one node, and on one platform";
}

}  // namespace

isthmus_status device_reducer::make(const isthmus_backend_context& context, std::uint64_t chunk_bytes,
                                 std::unique_ptr<device_reducer>& made) {
  const place own = own_place(context);
  std::vector<place> all(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &own, all.data(), sizeof own)) return status;
  std::unique_ptr<device_reducer> sums(new device_reducer(context, group_by_node_and_platform(context, all)));
  sums->m_hierarchy.chunk_bytes = chunk_bytes;
  sums->m_hierarchy.overlaps = can_overlap(context);
  const bool may_share = context.option(context.runtime, "intra_node") != nullptr;
  if (const std::string why = obstacle(sums->m_hierarchy.layout, all, may_share); !why.empty()) {
    context.log(context.runtime, 0, "all sums are done on the host: %s", why.c_str());
    return ISTHMUS_SUCCESS;
  }
  const isthmus_status status = sums->make_parts();
  if (status == ISTHMUS_SUCCESS) made = std::move(sums);
  if (status != ISTHMUS_ERROR_UNSUPPORTED) return status;
  context.log(context.runtime, 1, "all sums are done on the host: nothing sums among the devices of a node");
  return ISTHMUS_SUCCESS;
}

isthmus_status device_reducer::make_parts() {
  if (const auto status = m_hierarchy.comms.create_for_devices(*m_hierarchy.context, m_hierarchy.layout)) return status;
  if (const auto status = open_device()) return status;
  return agree_on_support();
}

isthmus_status device_reducer::open_device() {
  const isthmus_device device = m_hierarchy.context->device;
  vote<> mine;
  try {
    std::string reason;
    if (device.platform == ISTHMUS_PLATFORM_HOST) {
    } else if (device_driver* const driver = device_driver::get(device.platform, reason)) {
      m_hierarchy.device = std::make_unique<device_staging>(*m_hierarchy.context, *driver, m_hierarchy.comms.intra_node);
    } else {
      mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason, "");
    }
  } catch (const error& failure) {
    mine.refuse(failure.info().status, failure.info().message, failure.info().hint, failure.info().native_code);
  }
  votes<> all;
  return agree(*m_hierarchy.context, ISTHMUS_HERE, mine, all);
}

// The parts on the host can do everything, or nothing: whoever has no between asks nothing of it.
isthmus_status device_reducer::agree_on_support() {
  constexpr std::array required_inter_node = {phase::reduce_scatter, phase::reduce_scatterv, phase::allreduce,
                                        phase::reduce};
  vote<support_table> mine;
  if (const std::string lack = find_unsupported(m_hierarchy.comms.inter_node, required_inter_node); !lack.empty())
    mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, lack, "");
  mine.value = local_support();
  votes<support_table> all;
  if (const auto status = agree(*m_hierarchy.context, ISTHMUS_HERE, mine, all)) return status;
  m_supported.fill(~0U);
  bool any = false;
  for (std::size_t datatype = 0; datatype < m_supported.size(); ++datatype) {
    for (const auto& each : all) m_supported[datatype] &= each.value[datatype];
    any = any || m_supported[datatype] != 0;
  }
  return any ? ISTHMUS_SUCCESS
             : m_hierarchy.context->fail(m_hierarchy.context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE,
                                     nullptr, "no backend sums among the devices of a node");
}

device_reducer::support_table device_reducer::local_support() const {
  support_table own{};
  own.fill(~0U);
  if (!m_hierarchy.device) return own;
  for (std::size_t datatype = 0; datatype < own.size(); ++datatype)
    for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op)
      if (!can(static_cast<isthmus_datatype>(datatype), static_cast<isthmus_reduction_op>(op)))
        own[datatype] &= ~(1U << op);
  return own;
}

// From one element on up to a chunk: rules may choose by size.
bool device_reducer::can(isthmus_datatype datatype, isthmus_reduction_op op) const {
  const std::uint64_t most = m_hierarchy.chunk_bytes / bytes_of(datatype);
  const auto ranks = static_cast<std::uint64_t>(m_hierarchy.layout.own_node_size());
  for (const isthmus_collective collective :
       {phase::allreduce, phase::reduce_scatter, phase::allgather, phase::broadcast})
    for (std::uint64_t count : {std::uint64_t{1}, most}) {
      isthmus_operation operation{};
      operation.collective = collective;
      operation.datatype = datatype;
      operation.op = op == ISTHMUS_AVG ? ISTHMUS_SUM : op;
      const bool of_blocks = collective == phase::reduce_scatter || collective == phase::allgather;
      operation.count = std::max<std::uint64_t>(1, of_blocks ? count / ranks : count);
      if (!m_hierarchy.comms.intra_node.can(operation)) return false;
    }
  return true;
}

bool device_reducer::serves(const isthmus_operation& operation) const {
  const collective_row& row = row_of(operation.collective);
  if (!row.is_reduction || has_counts(row)) return false;
  if (row.send_extent != extent::count && !m_hierarchy.layout.is_even()) return false;
  return accumulation_type(operation.datatype, operation.op) == operation.datatype &&
         (m_supported[static_cast<std::size_t>(operation.datatype)] >> operation.op & 1U) != 0;
}

}  // namespace isthmus::hierarchical
