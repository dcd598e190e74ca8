#include "backends/hierarchical/subcommunicators.hpp"

#include <array>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "backends/hierarchical/phases.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace isthmus::hierarchical {
namespace {

isthmus_error_info latest_failure() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

[[noreturn]] void throw_latest_failure(const std::string& where) {
  const isthmus_error_info failure = latest_failure();
  std::vector<int> culprits(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(culprits.data(), culprits.size());
  throw subcommunicator_failure(fmt::format("{}: {}", where, failure.message), failure, std::move(culprits));
}

// What the parts are asked for.
constexpr std::array required_intra_node = {
    phase::reduce_scatter,   phase::reduce_scatterv, phase::reduce,  phase::broadcast,
    phase::allgather, phase::allgatherv,     phase::gatherv, phase::alltoallv,
    phase::barrier,          ISTHMUS_SEND,           ISTHMUS_RECV};
constexpr std::array required_inter_node = {
    phase::reduce_scatter, phase::reduce_scatterv, phase::allreduce,  phase::reduce,
    phase::broadcast, phase::allgather,   phase::allgatherv, phase::barrier};
constexpr std::array required_all_ranks = {phase::alltoallv, ISTHMUS_SEND, ISTHMUS_RECV};

std::string name_of(const char* place, const std::vector<int>& ranks) {
  return fmt::format("{} ranks {} (0 to {} there)", place, format_list(ranks), ranks.size() - 1);
}

std::vector<int> leaders_with_index(const rank_layout& layout, int index) {
  std::vector<int> leaders;
  for (int node = 0; node < layout.nodes(); ++node)
    leaders.push_back(layout.members(node)[static_cast<std::size_t>(index)]);
  return leaders;
}

}  // namespace

std::string find_unsupported(const part& operation, std::span<const isthmus_collective> collectives) {
  if (!operation.exists()) return "";
  std::string json;
  for (const isthmus_collective collective : collectives) {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.explain(operation, json);
    if (nlohmann::json::parse(json).at("backend").is_null())
      return fmt::format("{}: no backend can do {}", operation.name(), isthmus_collective_name(collective));
  }
  return "";
}

isthmus_status report(const isthmus_backend_context& context, const subcommunicator_failure& failure) {
  const isthmus_error_info& details = failure.details;
  return fail_with_ranks(context, failure.culprits, details.status, details.native_code, details.location, details.hint,
                 failure.what());
}

isthmus_status subcommunicator::create(const isthmus_backend_context& context, isthmus_device device, int color, int key,
                          const char* option, std::string name) {
  m_name = std::move(name);
  const char* const use = context.option(context.runtime, option);
  vote<> mine;
  const isthmus_status status = context.create_subcommunicator_on(context.runtime, device, color, key, use, &m_handle);
  if (status != ISTHMUS_SUCCESS) {
    const isthmus_error_info failure = latest_failure();
    mine.refuse(status, fmt::format("{}: {}", m_name, failure.message), failure.hint, failure.native_code);
  }
  votes<> all;
  return agree(context, ISTHMUS_HERE, mine, all);
}

subcommunicator::~subcommunicator() { isthmus_communicator_destroy(m_handle); }

void subcommunicator::fail() const { throw_latest_failure(m_name); }

bool subcommunicator::can(const isthmus_operation& operation) const {
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
  std::size_t needed = 0;
  if (isthmus_communicator_explain(m_handle, &operation, nullptr, 0, &needed) != ISTHMUS_SUCCESS) fail();
  json.resize(needed);
  if (isthmus_communicator_explain(m_handle, &operation, json.data(), json.size(), nullptr) != ISTHMUS_SUCCESS)
    fail();
  json.pop_back();
}

void subcommunicator::abort() const noexcept {
  if (exists()) isthmus_communicator_abort(m_handle);
}

isthmus_status subcommunicators::create(const isthmus_backend_context& context, const rank_layout& layout) {
  const int index = layout.own_index();
  if (const auto status = intra_node.create(context, layout.own_node(), context.rank, "intra_node",
                                      name_of("within the island of", layout.members(layout.own_node()))))
    return status;
  if (const auto status = inter_node.create(
          context, layout.is_leader() ? index : ISTHMUS_NO_COLOR, layout.own_node(), "inter_node",
          layout.is_leader() ? name_of("between the islands of", leaders_with_index(layout, index)) : "between islands"))
    return status;
  if (const auto status = all_ranks_comm.create(context, 0, context.rank, "inter_node", "between all ranks")) return status;
  vote<> mine;
  std::string lack = find_unsupported(intra_node, required_intra_node);
  if (lack.empty()) lack = find_unsupported(inter_node, required_inter_node);
  if (lack.empty()) lack = find_unsupported(all_ranks_comm, required_all_ranks);
  if (!lack.empty()) mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, lack, "isthmus explain shows the rules");
  votes<> all;
  return agree(context, ISTHMUS_HERE, mine, all);
}

isthmus_status subcommunicators::create_for_devices(const isthmus_backend_context& context, const rank_layout& layout) {
  const int index = layout.own_index();
  if (const auto status = intra_node.create(context, layout.own_node(), context.rank, "intra_node",
                                      name_of("within the island of", layout.members(layout.own_node()))))
    return status;
  return inter_node.create(
      context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, layout.is_leader() ? index : ISTHMUS_NO_COLOR,
      layout.own_node(), "inter_node",
      layout.is_leader() ? name_of("between the islands of", leaders_with_index(layout, index)) : "between islands");
}

void subcommunicators::abort() const noexcept {
  intra_node.abort();
  inter_node.abort();
  all_ranks_comm.abort();
}

message_batch::message_batch() { isthmus_group_start(); }

message_batch::~message_batch() {
  if (m_open) isthmus_group_end();  // after a failure: it starts nothing
}

void message_batch::finish() {
  m_open = false;
  if (isthmus_group_end() != ISTHMUS_SUCCESS) throw_latest_failure("messages within and between islands");
}

}  // namespace isthmus::hierarchical
