#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "selection/grammar.hpp"

namespace isthmus::selection {
namespace {

template <typename Value>
bool contains(const std::vector<Value>& filter, Value value) {
  return filter.empty() || std::find(filter.begin(), filter.end(), value) != filter.end();
}

bool matches_op(const selection_rule& rule, const selection_query& query) {
  return rule.ops.empty() || (query.op && contains(rule.ops, *query.op));
}

bool matches_memory(const selection_rule& rule, const selection_query& query) {
  return rule.memory == memory_kind::any || rule.memory == query.memory;
}

bool matches_bytes(const selection_rule& rule, const selection_query& query) {
  if (!rule.has_byte_range) return true;
  return query.bytes && *query.bytes >= rule.min_bytes &&
         (*query.bytes < rule.end_bytes || rule.end_bytes == unbounded_bytes);
}

bool matches(const selection_rule& rule, const selection_query& query) {
  return is_relevant(rule, query.platform, query.ranks, query.nodes) &&
         contains(rule.collectives, query.collective) && contains(rule.datatypes, query.datatype) &&
         matches_op(rule, query) && matches_memory(rule, query) && matches_bytes(rule, query);
}

template <typename Value>
std::string describe_list_mismatch(std::string_view subject, Value value, const std::vector<Value>& filter,
                                   std::span<const std::string_view> names) {
  std::vector<std::string_view> allowed_names;
  allowed_names.reserve(filter.size());
  for (Value item : filter) allowed_names.push_back(names[item]);
  return fmt::format("{} {} is not {}{}", subject, names[value], allowed_names.size() > 1 ? "one of " : "",
                     fmt::join(allowed_names, ", "));
}

std::string describe_range_mismatch(std::string_view subject, int value, int min, int max) {
  return fmt::format("{} {} is {} {}", subject, value, min == max ? "not" : "outside",
                     format_count_range(min, max));
}

std::string describe_bytes_mismatch(const selection_rule& rule, const selection_query& query) {
  const std::string range = fmt::format(
      "{}..{}", rule.min_bytes, rule.end_bytes == unbounded_bytes ? "" : fmt::format("{}", rule.end_bytes));
  if (!query.bytes) return fmt::format("bytes are not known on all ranks, but the rule requires {}", range);
  if (*query.bytes < rule.min_bytes)
    return fmt::format("bytes {} is less than {}", *query.bytes, rule.min_bytes);
  return fmt::format("bytes {} is not less than {}", *query.bytes, rule.end_bytes);
}

// The first filter of a rule that does not match, in the order of the rule's text.
struct filter_mismatch {
  std::string_view filter;  // "": the rule matches
  std::string reason;
};

filter_mismatch find_mismatch(const selection_rule& rule, const selection_query& query) {
  if (!contains(rule.collectives, query.collective))
    return {"collective",
            describe_list_mismatch("collective", query.collective, rule.collectives, collective_names())};
  if (!contains(rule.platforms, query.platform))
    return {"platform", describe_list_mismatch("platform", query.platform, rule.platforms, platform_names())};
  if (!contains(rule.datatypes, query.datatype))
    return {"datatype", describe_list_mismatch("datatype", query.datatype, rule.datatypes, datatype_names())};
  if (!matches_op(rule, query))
    return {"op", query.op ? describe_list_mismatch("op", *query.op, rule.ops, op_names())
                           : fmt::format("{} has no op", collective_names()[query.collective])};
  if (!matches_memory(rule, query)) return {"memory", "the buffers are not both in the symmetric heap"};
  if (query.ranks < rule.min_ranks || query.ranks > rule.max_ranks)
    return {"ranks", describe_range_mismatch("ranks", query.ranks, rule.min_ranks, rule.max_ranks)};
  if (query.nodes < rule.min_nodes || query.nodes > rule.max_nodes)
    return {"nodes", describe_range_mismatch("nodes", query.nodes, rule.min_nodes, rule.max_nodes)};
  if (!matches_bytes(rule, query)) return {"bytes", describe_bytes_mismatch(rule, query)};
  return {};
}

// Returns true if users may expect the rule to match. A profile has the same rules for many numbers of ranks.
bool is_relevant_mismatch(const selection_rule& rule, std::string_view filter) {
  if (is_built_in(rule) || filter == "collective" || filter == "platform") return false;
  return filter != "ranks" || !rule.source.starts_with("profile");
}

std::string describe_unavailable(const selection_rule& rule, const char* obstacle) {
  return fmt::format("backend {}{}{} cannot run this call: {}", rule.backend, rule.algorithm.empty() ? "" : ":",
                     rule.algorithm, obstacle);
}

nlohmann::json to_json(const selection_query& query) {
  nlohmann::json json = {{"collective", collective_names()[query.collective]},
                         {"datatype", datatype_names()[query.datatype]},
                         {"op", nullptr},
                         {"platform", platform_names()[query.platform]},
                         {"memory", query.memory == memory_kind::symmetric ? "symmetric" : "any"},
                         {"ranks", query.ranks},
                         {"nodes", query.nodes},
                         {"bytes", nullptr}};
  if (query.op) json["op"] = op_names()[*query.op];
  if (query.bytes) json["bytes"] = *query.bytes;
  return json;
}

nlohmann::json to_json(const selection_rule& rule) {
  return {
      {"backend", rule.backend}, {"algorithm", rule.algorithm}, {"rule", rule.text}, {"source", rule.source}};
}

}  // namespace

bool is_relevant(const selection_rule& rule, isthmus_platform platform, int ranks, int nodes) {
  return contains(rule.platforms, platform) && ranks >= rule.min_ranks && ranks <= rule.max_ranks &&
         nodes >= rule.min_nodes && nodes <= rule.max_nodes;
}

selection_decision select(const configuration& config, const selection_query& query,
                          const availability& find_obstacle, bool trace) {
  selection_decision result;
  bool has_fallback = false;
  for (auto rule = config.rules.rbegin(); rule != config.rules.rend(); ++rule) {
    if (!trace && !matches(*rule, query)) continue;
    auto [filter, reason] = find_mismatch(*rule, query);
    if (!filter.empty()) {
      result.rejections.push_back(
          {&*rule, std::move(reason), filter, false, is_relevant_mismatch(*rule, filter)});
    } else if (result.winner != nullptr) {  // reached only with `trace`
      const bool is_fallback = is_built_in(*rule) && !std::exchange(has_fallback, true);
      result.rejections.push_back({&*rule, "matches, but the selected rule takes precedence", "", false,
                                   is_fallback || !is_built_in(*rule)});
    } else if (const char* const obstacle = find_obstacle(*rule); obstacle == nullptr) {
      result.winner = &*rule;
      result.reason = fmt::format("rule \"{}\" ({})", rule->text, rule->source);
      if (!trace) return result;
    } else if (trace) {
      result.rejections.push_back({&*rule, describe_unavailable(*rule, obstacle), "", true, true});
    }
  }
  if (result.winner == nullptr)
    result.reason =
        fmt::format("none of the {} rules matches and has an available backend", config.rules.size());
  return result;
}

nlohmann::json to_json(const selection_query& query, const selection_decision& decision) {
  nlohmann::json json = {{"backend", nullptr}, {"algorithm", nullptr}, {"rule", nullptr}, {"source", nullptr}};
  if (decision.winner != nullptr) json = to_json(*decision.winner);
  json["query"] = to_json(query);
  json["reason"] = decision.reason;
  json["rejected"] = nlohmann::json::array();
  for (const rule_rejection& rejection : decision.rejections) {
    nlohmann::json entry = to_json(*rejection.candidate);
    entry["reason"] = rejection.reason;
    entry["mismatch"] = rejection.mismatch.empty() ? nlohmann::json() : nlohmann::json(rejection.mismatch);
    entry["unavailable"] = rejection.is_unavailable;
    entry["is_relevant"] = rejection.is_relevant;
    json["rejected"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace isthmus::selection
