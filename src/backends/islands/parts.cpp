#include "backends/islands/parts.hpp"

#include <array>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "backends/islands/kinds.hpp"
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
  throw part_failure(fmt::format("{}: {}", where, failure.message), failure, std::move(culprits));
}

// What the parts are asked for.
constexpr std::array asked_within = {
    kinds::sum_to_each,   kinds::sum_to_each_run, kinds::sum_to_one,  kinds::copy_to_all,
    kinds::blocks_to_all, kinds::runs_to_all,     kinds::runs_to_one, kinds::runs_to_each,
    kinds::meet,          ISTHMUS_SEND,           ISTHMUS_RECV};
constexpr std::array asked_between = {
    kinds::sum_to_each, kinds::sum_to_each_run, kinds::sum_to_all,  kinds::sum_to_one,
    kinds::copy_to_all, kinds::blocks_to_all,   kinds::runs_to_all, kinds::meet};
constexpr std::array asked_across = {kinds::runs_to_each, ISTHMUS_SEND, ISTHMUS_RECV};

std::string name_of(const char* place, const std::vector<int>& ranks) {
  return fmt::format("{} ranks {} (0 to {} there)", place, format_list(ranks), ranks.size() - 1);
}

std::vector<int> holders_like(const layout& ranks, int index) {
  std::vector<int> holders;
  for (int node = 0; node < ranks.nodes(); ++node)
    holders.push_back(ranks.members(node)[static_cast<std::size_t>(index)]);
  return holders;
}

}  // namespace

std::string lack_of(const part& asked, std::span<const isthmus_collective> collectives) {
  if (!asked.exists()) return "";
  std::string json;
  for (const isthmus_collective collective : collectives) {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = ISTHMUS_FLOAT32;
    asked.explain(operation, json);
    if (nlohmann::json::parse(json).at("backend").is_null())
      return fmt::format("{}: no backend can do {}", asked.name(), isthmus_collective_name(collective));
  }
  return "";
}

isthmus_status report(const isthmus_backend_context& context, const part_failure& failure) {
  const isthmus_error_info& details = failure.details;
  return fail_with_ranks(context, failure.culprits, details.status, details.native_code, details.location, details.hint,
                 failure.what());
}

isthmus_status part::make(const isthmus_backend_context& context, isthmus_device device, int color, int key,
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

part::~part() { isthmus_communicator_destroy(m_handle); }

void part::fail() const { throw_latest_failure(m_name); }

bool part::can(const isthmus_operation& operation) const {
  std::array<char, 2> path{};
  return isthmus_communicator_path(m_handle, &operation, path.data(), path.size()) == ISTHMUS_SUCCESS &&
         path[0] != '\0';
}

void part::check() const {
  if (isthmus_communicator_async_error(m_handle) != ISTHMUS_SUCCESS) fail();
}

void part::run(const isthmus_operation& operation) const {
  if (isthmus_enqueue(m_handle, &operation) != ISTHMUS_SUCCESS) fail();
}

void part::explain(const isthmus_operation& operation, std::string& json) const {
  std::size_t needed = 0;
  if (isthmus_communicator_explain(m_handle, &operation, nullptr, 0, &needed) != ISTHMUS_SUCCESS) fail();
  json.resize(needed);
  if (isthmus_communicator_explain(m_handle, &operation, json.data(), json.size(), nullptr) != ISTHMUS_SUCCESS)
    fail();
  json.pop_back();
}

void part::abort() const noexcept {
  if (exists()) isthmus_communicator_abort(m_handle);
}

isthmus_status parts::make(const isthmus_backend_context& context, const layout& ranks) {
  const int index = ranks.own_index();
  if (const auto status = within.make(context, ranks.own_island(), context.rank, "intra_node",
                                      name_of("within the island of", ranks.members(ranks.own_island()))))
    return status;
  if (const auto status = between.make(
          context, ranks.holds() ? index : ISTHMUS_NO_COLOR, ranks.own_island(), "inter_node",
          ranks.holds() ? name_of("between the islands of", holders_like(ranks, index)) : "between islands"))
    return status;
  if (const auto status = across.make(context, 0, context.rank, "inter_node", "between all ranks")) return status;
  vote<> mine;
  std::string lack = lack_of(within, asked_within);
  if (lack.empty()) lack = lack_of(between, asked_between);
  if (lack.empty()) lack = lack_of(across, asked_across);
  if (!lack.empty()) mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, lack, "isthmus explain shows the rules");
  votes<> all;
  return agree(context, ISTHMUS_HERE, mine, all);
}

isthmus_status parts::make_for_devices(const isthmus_backend_context& context, const layout& ranks) {
  const int index = ranks.own_index();
  if (const auto status = within.make(context, ranks.own_island(), context.rank, "intra_node",
                                      name_of("within the island of", ranks.members(ranks.own_island()))))
    return status;
  return between.make(
      context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, ranks.holds() ? index : ISTHMUS_NO_COLOR,
      ranks.own_island(), "inter_node",
      ranks.holds() ? name_of("between the islands of", holders_like(ranks, index)) : "between islands");
}

void parts::abort() const noexcept {
  within.abort();
  between.abort();
  across.abort();
}

message_group::message_group() { isthmus_group_start(); }

message_group::~message_group() {
  if (m_open) isthmus_group_end();  // after a failure: it starts nothing
}

void message_group::finish() {
  m_open = false;
  if (isthmus_group_end() != ISTHMUS_SUCCESS) throw_latest_failure("messages within and between islands");
}

}  // namespace isthmus::hierarchical
