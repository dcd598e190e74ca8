#include "backends/hierarchical/subcommunicators.hpp"

#include <isthmus/tools.h>

#include <algorithm>
#include <array>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "backends/hierarchical/collectives.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace isthmus::hierarchical {
namespace {

isthmus_error_info latest_failure() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

[[noreturn]] void throw_latest_failure(const std::string& context) {
  const isthmus_error_info info = latest_failure();
  std::vector<int> failed_ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(failed_ranks.data(), failed_ranks.size());
  throw subcommunicator_failure(fmt::format("{}: {}", context, info.message), info, std::move(failed_ranks));
}

// The collectives that run on each subcommunicator.
constexpr std::array required_intra_node = {reduce_scatter_phase, reduce_scatterv_phase, reduce_phase,
                                            broadcast_phase,      allgather_phase,       allgatherv_phase,
                                            gatherv_phase,        alltoallv_phase,       barrier_phase,
                                            ISTHMUS_SEND,         ISTHMUS_RECV};
constexpr std::array required_inter_node = {reduce_scatter_phase, reduce_scatterv_phase, allreduce_phase,
                                            reduce_phase,         broadcast_phase,       allgather_phase,
                                            allgatherv_phase,     barrier_phase};
constexpr std::array required_all_ranks = {alltoallv_phase, ISTHMUS_SEND, ISTHMUS_RECV};

std::string name_of(const char* prefix, const std::vector<int>& ranks) {
  return fmt::format("{} ranks {} (local ranks 0 to {})", prefix, format_list(ranks), ranks.size() - 1);
}

std::vector<int> leaders_with_index(const rank_layout& layout, int index) {
  std::vector<int> result;
  for (int node = 0; node < layout.nodes(); ++node)
    result.push_back(layout.members(node)[static_cast<std::size_t>(index)]);
  return result;
}

}  // namespace

rank_layout::rank_layout(int rank, std::vector<int> node_of)
    : m_rank(rank), m_node_of(std::move(node_of)), m_position_of(m_node_of.size()) {
  m_members.resize(static_cast<std::size_t>(*std::ranges::max_element(m_node_of)) + 1);
  for (int each = 0; each < size(); ++each) {
    auto& node = m_members[static_cast<std::size_t>(m_node_of[static_cast<std::size_t>(each)])];
    m_index_of.push_back(static_cast<int>(node.size()));
    node.push_back(each);
  }
  const auto [smallest, largest] = std::ranges::minmax(m_members, {}, &std::vector<int>::size);
  m_leaders = static_cast<int>(smallest.size());
  m_is_even = smallest.size() == largest.size();
  for (int leader = 0; leader < m_leaders; ++leader)
    for (const auto& node : m_members)
      for (const int each : node)
        if (leader_of(each) == leader) m_order.push_back(each);
  for (std::size_t position = 0; position < m_order.size(); ++position)
    m_position_of[static_cast<std::size_t>(m_order[position])] = static_cast<int>(position);
}

int rank_layout::largest_group_count() const {
  int result = 0;
  for (int node = 0; node < nodes(); ++node) result = std::max(result, group_count(node));
  return result;
}

std::span<const int> rank_layout::group(int node, int index) const {
  const std::span<const int> ranks = members(node);
  const std::size_t begin = std::min(ranks.size(), static_cast<std::size_t>(index * m_leaders));
  return ranks.subspan(begin, std::min(ranks.size() - begin, static_cast<std::size_t>(m_leaders)));
}

index_range rank_layout::leader_range(int leader, int node) const {
  const auto& ranks = members(node);
  const int later_ranks = static_cast<int>(ranks.size()) - 1 - leader;
  return {position_of(ranks[static_cast<std::size_t>(leader)]), 1 + later_ranks / m_leaders};
}

std::string find_unsupported(const subcommunicator& comm, std::span<const isthmus_collective> collectives) {
  if (!comm.is_member()) return "";
  std::string json;
  for (const isthmus_collective collective : collectives) {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = ISTHMUS_FLOAT32;
    comm.explain(operation, json);
    if (nlohmann::json::parse(json).at("backend").is_null())
      return fmt::format("{}: no backend supports {}", comm.name(), isthmus_collective_name(collective));
  }
  return "";
}

isthmus_status report(const isthmus_backend_context& context, const subcommunicator_failure& failure) {
  const isthmus_error_info& details = failure.details;
  return fail_with_ranks(context, failure.failed_ranks, details.status, details.native_code, details.location,
                         details.hint, failure.what());
}

isthmus_status subcommunicator::create(const isthmus_backend_context& context, isthmus_device device, int color,
                                       int key, const char* option, std::string name) {
  m_name = std::move(name);
  const char* const backend = context.option(context.runtime, option);
  vote<> own_vote;
  const isthmus_status status =
      context.create_subcommunicator(context.runtime, device, color, key, backend, &m_handle);
  if (status != ISTHMUS_SUCCESS) {
    const isthmus_error_info info = latest_failure();
    own_vote.refuse(status, fmt::format("{}: {}", m_name, info.message), info.hint, info.native_code);
  }
  votes<> all;
  return agree(context, ISTHMUS_HERE, own_vote, all);
}

subcommunicator::~subcommunicator() { isthmus_communicator_destroy(m_handle); }

void subcommunicator::fail() const { throw_latest_failure(m_name); }

bool subcommunicator::supports(const isthmus_operation& operation) const {
  std::array<char, 2> path{};
  return isthmus_communicator_path(m_handle, &operation, path.data(), path.size()) == ISTHMUS_SUCCESS &&
         path[0] != '\0';
}

void subcommunicator::check() const {
  if (isthmus_communicator_async_error(m_handle) != ISTHMUS_SUCCESS) fail();
}

void subcommunicator::run(const isthmus_operation& operation) const {
  if (isthmus_enqueue(m_handle, &operation) != ISTHMUS_SUCCESS) fail();
}

void subcommunicator::explain(const isthmus_operation& operation, std::string& json) const {
  std::size_t required_bytes = 0;
  if (isthmus_communicator_explain(m_handle, &operation, nullptr, 0, &required_bytes) != ISTHMUS_SUCCESS)
    fail();
  json.resize(required_bytes);
  if (isthmus_communicator_explain(m_handle, &operation, json.data(), json.size(), nullptr) != ISTHMUS_SUCCESS)
    fail();
  json.pop_back();
}

void subcommunicator::abort() const noexcept {
  if (is_member()) isthmus_communicator_abort(m_handle);
}

isthmus_status subcommunicators::create(const isthmus_backend_context& context, const rank_layout& layout) {
  const int index = layout.own_index();
  if (const auto status = intra_node.create(context, layout.own_node(), context.rank, "intra_node",
                                            name_of("intra-node", layout.members(layout.own_node()))))
    return status;
  if (const auto status = inter_node.create(
          context, layout.is_leader() ? index : ISTHMUS_NO_COLOR, layout.own_node(), "inter_node",
          layout.is_leader() ? name_of("inter-node", leaders_with_index(layout, index)) : "inter-node"))
    return status;
  if (const auto status = all_ranks_comm.create(context, 0, context.rank, "inter_node", "all ranks"))
    return status;
  vote<> own_vote;
  std::string unsupported = find_unsupported(intra_node, required_intra_node);
  if (unsupported.empty()) unsupported = find_unsupported(inter_node, required_inter_node);
  if (unsupported.empty()) unsupported = find_unsupported(all_ranks_comm, required_all_ranks);
  if (!unsupported.empty())
    own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, unsupported, "run isthmus explain to see the rules");
  votes<> all;
  return agree(context, ISTHMUS_HERE, own_vote, all);
}

isthmus_status subcommunicators::create_for_devices(const isthmus_backend_context& context,
                                                    const rank_layout& layout) {
  const int index = layout.own_index();
  if (const auto status = intra_node.create(context, layout.own_node(), context.rank, "intra_node",
                                            name_of("intra-node", layout.members(layout.own_node()))))
    return status;
  return inter_node.create(
      context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, layout.is_leader() ? index : ISTHMUS_NO_COLOR,
      layout.own_node(), "inter_node",
      layout.is_leader() ? name_of("inter-node", leaders_with_index(layout, index)) : "inter-node");
}

void subcommunicators::abort() const noexcept {
  intra_node.abort();
  inter_node.abort();
  all_ranks_comm.abort();
}

message_batch::message_batch() { isthmus_group_start(); }

message_batch::~message_batch() {
  if (m_open) isthmus_group_end();  // starts no operation if an earlier call of the group failed
}

void message_batch::finish() {
  m_open = false;
  if (isthmus_group_end() != ISTHMUS_SUCCESS) throw_latest_failure("intra-node and inter-node messages");
}

}  // namespace isthmus::hierarchical
