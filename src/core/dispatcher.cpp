#include "core/dispatcher.hpp"

#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "base/elements.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus {
namespace {

// Returns true if the rule was set by a user (not a built-in default) and matches the call, but its
// backend is unavailable.
bool is_unused_request(const selection::rule_rejection& rejection) {
  return !rejection.candidate->source.starts_with("default") && rejection.is_unavailable;
}

// Returns true if the result depends on the order of the contributions.
bool depends_on_order(const isthmus_operation& operation) {
  return row_of(operation.collective).is_reduction && is_floating(operation.datatype);
}

// Returns true if the backend gives a floating-point reduction the bits of the contributions in rank order.
bool guarantees_order(const backend_instance& backend, const isthmus_operation& operation, int ranks) {
  if ((backend.capabilities() & ISTHMUS_BACKEND_RANK_ORDER) != 0) return true;
  const bool is_wide = bytes_of(operation.datatype) >= 2;  // float8 saturates, and backends may add in float16
  return ranks == 2 && (operation.op == ISTHMUS_SUM || operation.op == ISTHMUS_PROD) && is_wide &&
         (backend.capabilities() & ISTHMUS_BACKEND_ROUNDS_ONCE) != 0;
}

// Returns the capability that an operation with `rmsnorm` or `product` needs, and the reason why a backend without it
// cannot run the operation. 0: none.
std::pair<std::uint32_t, const char*> needed_capability(const isthmus_operation& operation) {
  if (operation.rmsnorm != nullptr)
    return {ISTHMUS_BACKEND_RMSNORM, "backend has no kernels for allreduce_rmsnorm"};
  if (operation.product != nullptr) return {ISTHMUS_BACKEND_PRODUCT, "backend has no kernels for products"};
  return {0, nullptr};
}

// Returns true if the algorithm rounds the contributions before they are combined.
bool rounds_contributions(const backend_instance& backend, int algorithm) {
  return algorithm != ISTHMUS_ANY_ALGORITHM &&
         std::string_view(backend.functions().algorithms[algorithm]).ends_with(ISTHMUS_ROUNDED_SUFFIX);
}

// Describes the order and the rounding of a reduction whose bits depend on them, or returns null.
nlohmann::json order_json(const isthmus_operation& operation, const backend_instance* backend, int algorithm,
                          int ranks, bool is_required) {
  if (backend == nullptr || !depends_on_order(operation)) return {};
  const bool is_guaranteed = guarantees_order(*backend, operation, ranks);
  nlohmann::json json = {{"is_required", is_required}, {"is_guaranteed", is_guaranteed}};
  if (!is_guaranteed) {
    json["order"] = "chosen by the backend; it can depend on the size, the algorithm and the machine";
    json["rounding"] = "chosen by the backend";
    return json;
  }
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  json["order"] = fmt::format("rank {}, from left to right", fmt::join(order, ", "));
  const isthmus_datatype wide = accumulation_type(operation.datatype, operation.op);
  const bool is_rounded_first = rounds_contributions(*backend, algorithm);
  std::vector<std::string> points;
  if (is_rounded_first) points.emplace_back("each contribution to bfloat16");
  if (operation.op != ISTHMUS_MIN && operation.op != ISTHMUS_MAX && ranks > 1)
    points.push_back(fmt::format("each {} to {}", operation.op == ISTHMUS_PROD ? "product" : "sum",
                                 isthmus_datatype_name(wide)));
  if (operation.op == ISTHMUS_AVG && ranks > 1)
    points.push_back(fmt::format("the quotient to {}", isthmus_datatype_name(wide)));
  if (wide != operation.datatype || is_rounded_first)
    points.push_back(fmt::format("the result to {}",
                                 is_rounded_first ? "bfloat16" : isthmus_datatype_name(operation.datatype)));
  json["rounding"] = points.empty() ? "none" : fmt::format("{}", fmt::join(points, ", "));
  return json;
}

}  // namespace

dispatcher::dispatcher(const selection::configuration& rules, const membership& ranks,
                       const symmetric_heap& heap, const backend_set& backends,
                       const std::vector<std::string>& external_backends, recorder::flight_recorder& recorder)
    : m_rules(rules),
      m_ranks(ranks),
      m_heap(heap),
      m_backends(backends),
      m_external_backends(external_backends),
      m_recorder(recorder) {}

// Returns symmetric only if every rank uses every buffer of the call. For rooted collectives and for send and
// recv, the ranks could not agree on a memory kind.
selection::memory_kind dispatcher::memory_of(const isthmus_operation& operation) const {
  const collective_row& row = row_of(operation.collective);
  if (row.send_ranks != buffer_ranks::all || row.recv_ranks != buffer_ranks::all)
    return selection::memory_kind::any;
  const bool is_symmetric = m_heap.find(operation.send_buf, 1, nullptr, nullptr) &&
                            m_heap.find(operation.recv_buf, 1, nullptr, nullptr);
  return is_symmetric ? selection::memory_kind::symmetric : selection::memory_kind::any;
}

selection::selection_query dispatcher::make_query(const isthmus_operation& operation) const {
  return {.collective = operation.collective,
          .datatype = operation.datatype,
          .platform = m_ranks.selection_platform(),
          .memory = memory_of(operation),
          .ranks = m_ranks.size,
          .nodes = m_ranks.nodes,
          .bytes = selection_bytes(operation, m_ranks.size),
          .op = row_of(operation.collective).is_reduction ? std::optional(operation.op) : std::nullopt};
}

bool dispatcher::is_external(const std::string& name) const {
  return std::ranges::find(m_external_backends, name) != m_external_backends.end();
}

const char* dispatcher::find_obstacle(const std::string& name, int algorithm,
                                      const isthmus_operation& common_operation) const {
  const bool needs_rank_order = m_rules.deterministic && depends_on_order(common_operation);
  const auto [capability, no_kernels] = needed_capability(common_operation);
  if (is_external(name)) {
    if (capability != 0) return no_kernels;
    return needs_rank_order ? "deterministic: the caller runs this backend, in an unknown order" : nullptr;
  }
  backend_instance* const backend = m_backends.find(name);
  if (backend == nullptr) return "there is no backend of this name";
  if (!backend->is_usable()) return backend->reason().c_str();
  if ((backend->capabilities() & capability) != capability) return no_kernels;
  if (needs_rank_order) {
    if (!guarantees_order(*backend, common_operation, m_ranks.size))
      return "deterministic: backend does not guarantee rank-ordered reductions";
    if (rounds_contributions(*backend, algorithm))
      return "deterministic: the algorithm rounds contributions to bfloat16, so results depend on the "
             "algorithm";
  }
  return backend->supports(common_operation, algorithm);
}

selection::availability dispatcher::make_availability(const isthmus_operation& common_operation) const {
  return [this, common_operation](const selection::selection_rule& rule) {
    return find_obstacle(rule.backend, rule.algorithm_index, common_operation);
  };
}

// Slow path of choose: the entry is in one of the next slots or does not exist.
backend_choice dispatcher::probe_cache(const cache_key& key, const isthmus_operation& operation) {
  const std::size_t first_slot = index_of(key);
  const auto slot = [&](std::size_t i) -> cache_entry& { return m_cache[(first_slot + i) % m_cache.size()]; };
  std::size_t free_slot = max_probes;
  for (std::size_t i = 0; i < max_probes; ++i) {
    if (slot(i).key == key) return slot(i).choice;
    if (free_slot == max_probes && slot(i).key == cache_key{}) free_slot = i;
  }
  const backend_choice choice = select_backend(operation);
  if (free_slot == max_probes) free_slot = m_evictions++ % max_probes;
  slot(free_slot) = {key, choice};
  return choice;
}

backend_choice dispatcher::select_backend(const isthmus_operation& operation) {
  const auto common_operation = agreed_operation(operation, m_ranks.size);
  const auto decision =
      selection::select(m_rules, make_query(operation), make_availability(common_operation), true);
  if (decision.winner == nullptr) {
    std::vector<std::string> reasons;
    for (const auto& rejection : decision.rejections)
      if (rejection.is_unavailable) reasons.push_back(rejection.reason);
    if (reasons.empty()) reasons.push_back(decision.reason);
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("no backend can run {} of {}: {}", isthmus_collective_name(operation.collective),
                    isthmus_datatype_name(operation.datatype), fmt::join(reasons, "; ")),
        "run isthmus explain to see every rule and backend for this call");
  }
  if (is_external(decision.winner->backend))
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("{} of {} selects {}, an external backend that the caller must run: {}",
                    isthmus_collective_name(operation.collective), isthmus_datatype_name(operation.datatype),
                    decision.winner->backend, decision.reason),
        "call isthmus_communicator_path first, and run the operation yourself if it returns an external "
        "backend");
  log_unused_rules(decision, operation);
  const std::string& algorithm = decision.winner->algorithm;
  // This is logged once per kind of call, because the choice is cached. It shows the path of a real call
  // without a call of explain.
  log(log_level::debug, "rank {}: {} of {} takes {}{}{}: {}", m_ranks.rank,
      isthmus_collective_name(operation.collective), isthmus_datatype_name(operation.datatype),
      decision.winner->backend, algorithm.empty() ? "" : ":", algorithm, decision.reason);
  return {m_backends.find(decision.winner->backend), decision.winner->algorithm_index,
          m_recorder.reason_index(decision.reason)};
}

void dispatcher::log_unused_rules(const selection::selection_decision& decision,
                                  const isthmus_operation& operation) {
  for (const auto& rejection : decision.rejections) {
    if (!is_unused_request(rejection) ||
        !m_logged_rules.insert(rejection.candidate->text + rejection.reason).second)
      continue;
    // The user did not write the rules of the profile, which serves programs with and without MPI.
    const bool is_measured = rejection.candidate->source.starts_with("profile");
    log(is_measured ? log_level::info : log_level::warning, "rank {}: {}: rule \"{}\" ({}) is not followed: {}",
        m_ranks.rank, isthmus_collective_name(operation.collective), rejection.candidate->text,
        rejection.candidate->source, rejection.reason);
  }
}

nlohmann::json dispatcher::plan_json(const selection::selection_decision& decision,
                                     const isthmus_operation& common_operation) const {
  if (decision.winner == nullptr) return {};
  if (is_external(decision.winner->backend)) return {};
  const char* const text =
      m_backends.find(decision.winner->backend)->plan(common_operation, decision.winner->algorithm_index);
  return text == nullptr ? nlohmann::json() : nlohmann::json::parse(text);
}

std::string dispatcher::path(const isthmus_operation& operation) const {
  const auto decision = selection::select(m_rules, make_query(operation),
                                          make_availability(agreed_operation(operation, m_ranks.size)), false);
  if (decision.winner == nullptr) return "";
  return decision.winner->backend +
         (decision.winner->algorithm.empty() ? "" : ":" + decision.winner->algorithm);
}

nlohmann::json dispatcher::explain(const isthmus_operation& operation) {
  const auto common_operation = agreed_operation(operation, m_ranks.size);
  const auto call_query = make_query(operation);
  const auto decision = selection::select(m_rules, call_query, make_availability(common_operation), true);
  nlohmann::json result = selection::to_json(call_query, decision);
  result["not_used"] = nlohmann::json::array();
  for (const auto& rejection : decision.rejections)
    if (is_unused_request(rejection))
      result["not_used"].push_back({{"rule", rejection.candidate->text},
                                    {"source", rejection.candidate->source},
                                    {"reason", rejection.reason}});
  result["supports"] = nlohmann::json::object();
  for (const auto& backend : m_backends) {
    const char* reason = find_obstacle(backend->name(), ISTHMUS_ANY_ALGORITHM, common_operation);
    result["supports"][backend->name()] = reason == nullptr ? nlohmann::json() : nlohmann::json(reason);
  }
  const bool has_no_local_backend = decision.winner == nullptr || is_external(decision.winner->backend);
  const backend_instance* const backend =
      has_no_local_backend ? nullptr : m_backends.find(decision.winner->backend);
  const int algorithm = backend == nullptr ? ISTHMUS_ANY_ALGORITHM : decision.winner->algorithm_index;
  result["reduction"] = order_json(common_operation, backend, algorithm, m_ranks.size, m_rules.deterministic);
  result["version"] = backend == nullptr ? nlohmann::json() : nlohmann::json(backend->version());
  result["plan"] = plan_json(decision, common_operation);
  result["notes"] = backend == nullptr ? std::vector<std::string>{} : backend->notes();
  return result;
}

}  // namespace isthmus
