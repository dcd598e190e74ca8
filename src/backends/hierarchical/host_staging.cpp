#include "backends/hierarchical/host_staging.hpp"

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

constexpr std::array all_collectives = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

}  // namespace

isthmus_status host_staging::detect_platforms(const isthmus_backend_context& context, platforms& result) {
  const std::int32_t own = context.device.platform;
  std::vector<std::int32_t> all(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &own, all.data(), sizeof own)) return status;
  result.has_devices = std::ranges::any_of(all, [](auto each) { return each != ISTHMUS_PLATFORM_HOST; });
  result.is_mixed = std::ranges::any_of(all, [&](auto each) { return each != all[0]; });
  return ISTHMUS_SUCCESS;
}

isthmus_status with_driver(const isthmus_backend_context& context,
                           const std::function<void(device_driver* driver)>& use) {
  vote<> own_vote;
  try {
    std::string reason;
    const bool is_on_host = context.device.platform == ISTHMUS_PLATFORM_HOST;
    device_driver* const driver = is_on_host ? nullptr : device_driver::get(context.device.platform, reason);
    if (is_on_host || driver != nullptr)
      use(driver);
    else
      own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason,
                      "install the driver of the device, which copies to and from the host need");
  } catch (const error& failure) {
    own_vote.refuse(failure.info().status, failure.info().message, failure.info().hint,
                    failure.info().native_code);
  }
  votes<> all;
  return agree(context, ISTHMUS_HERE, own_vote, all);
}

isthmus_status host_staging::create(std::uint64_t chunk_bytes) {
  m_chunk_bytes = chunk_bytes;
  if (const auto status = with_driver(m_context, [this](device_driver* driver) {
        staging_transport& transport = *this;
        m_pipeline.emplace(m_context, driver, "hierarchical", transport, pinned_growth::on_demand,
                           m_chunk_bytes);
      }))
    return status;
  if (const auto status = m_host_comm.create(m_context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, 0,
                                             m_context.rank, "inter_node", "host staging"))
    return status;
  vote<> own_vote;
  if (const std::string unsupported = find_unsupported(m_host_comm, all_collectives); !unsupported.empty())
    own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, unsupported, "run isthmus explain to see the rules");
  votes<> all;
  if (const auto status = agree(m_context, ISTHMUS_HERE, own_vote, all)) return status;
  return device_reducer::create(m_context, chunk_bytes, m_reducer);
}

void host_staging::abort() const noexcept {
  m_host_comm.abort();
  if (m_reducer) m_reducer->abort();
}

void host_staging::start_messages(std::span<const isthmus_operation> messages) {
  message_batch group;
  for (const isthmus_operation& message : messages) m_host_comm.run(message);
  group.finish();
}

void host_staging::run(const isthmus_operation* operations, const int* algorithms, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (i == 0 || operations[i].stream != operations[i - 1].stream) m_pipeline->enter(operations[i].stream);
  // On all ranks, the messages of a group run before its collectives.
  m_pipeline->start_messages({operations, n});
  m_pipeline->finish_messages();
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;
    if (m_reducer && m_reducer->supports(operations[i]))
      m_reducer->run(operations[i], m_shard_mode_of(algorithms[i]));
    else
      m_pipeline->run_collective(operations[i]);
  }
}

std::string host_staging::plan(const isthmus_operation& operation, int algorithm) const {
  if (m_reducer && m_reducer->supports(operation))
    return m_reducer->plan(operation, m_shard_mode_of(algorithm));
  isthmus_operation host_operation = operation;
  host_operation.stream = nullptr;
  std::string text;
  m_host_comm.explain(host_operation, text);
  const auto explanation = nlohmann::json::parse(text);
  const nlohmann::json step = {{"subcommunicator", m_host_comm.name()},
                               {"calls", 1},
                               {"collective", row_of(operation.collective).name},
                               {"bytes", selection_bytes(operation, m_context.size).value_or(0)},
                               {"backend", explanation.at("backend")},
                               {"algorithm", explanation.at("algorithm")},
                               {"rule", explanation.at("reason")}};
  return nlohmann::json::array({step}).dump();
}

}  // namespace isthmus::hierarchical
