#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "selection/grammar.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {
namespace {

template <typename Value>
bool holds(const std::vector<Value>& filter, Value value) {
  return filter.empty() || std::find(filter.begin(), filter.end(), value) != filter.end();
}

bool matches_memory(const rule& rule, const query& query) {
  return rule.memory == memory_kind::any || rule.memory == query.memory;
}

bool matches_bytes(const rule& rule, const query& query) {
  if (!rule.has_byte_range) return true;
  return query.bytes && *query.bytes >= rule.min_bytes &&
         (*query.bytes < rule.end_bytes || rule.end_bytes == unbounded_bytes);
}

bool matches(const rule& rule, const query& query) {
  return concerns(rule, query.platform, query.ranks, query.nodes) &&
         holds(rule.collectives, query.collective) && holds(rule.datatypes, query.datatype) &&
         matches_memory(rule, query) && matches_bytes(rule, query);
}

template <typename Value>
std::string not_in(std::string_view what, Value value, const std::vector<Value>& filter,
                   std::span<const std::string_view> names) {
  std::vector<std::string_view> wanted;
  wanted.reserve(filter.size());
  for (Value item : filter) wanted.push_back(names[item]);
  return fmt::format("{} {} is not {}{}", what, names[value], wanted.size() > 1 ? "one of " : "",
                     fmt::join(wanted, ", "));
}

std::string outside(std::string_view what, int value, int min, int max) {
  return fmt::format("{} {} is {} {}", what, value, min == max ? "not" : "outside",
                     format_count_range(min, max));
}

std::string outside_bytes(const rule& rule, const query& query) {
  const std::string range = fmt::format(
      "{}..{}", rule.min_bytes, rule.end_bytes == unbounded_bytes ? "" : fmt::format("{}", rule.end_bytes));
  if (!query.bytes) return fmt::format("bytes are not known to all ranks, the rule wants {}", range);
  return fmt::format("bytes {} is outside {}", *query.bytes, range);
}

// Why a rule does not match: its first filter that fails, in the order in which its text shows them.
std::string mismatch(const rule& rule, const query& query) {
  if (!holds(rule.collectives, query.collective))
    return not_in("collective", query.collective, rule.collectives, collective_names());
  if (!holds(rule.platforms, query.platform))
    return not_in("platform", query.platform, rule.platforms, platform_names());
  if (!holds(rule.datatypes, query.datatype))
    return not_in("datatype", query.datatype, rule.datatypes, datatype_names());
  if (!matches_memory(rule, query)) return "the buffers are not both in the symmetric heap";
  if (query.ranks < rule.min_ranks || query.ranks > rule.max_ranks)
    return outside("ranks", query.ranks, rule.min_ranks, rule.max_ranks);
  if (query.nodes < rule.min_nodes || query.nodes > rule.max_nodes)
    return outside("nodes", query.nodes, rule.min_nodes, rule.max_nodes);
  return outside_bytes(rule, query);
}

std::string unavailable(const rule& rule, const char* why) {
  return fmt::format("backend {}{}{} is not available: {}", rule.backend, rule.algorithm.empty() ? "" : ":",
                     rule.algorithm, why);
}

}  // namespace

bool concerns(const rule& rule, const query& query) {
  return holds(rule.collectives, query.collective) && holds(rule.platforms, query.platform);
}

bool concerns(const rule& rule, isthmus_platform platform, int ranks, int nodes) {
  return holds(rule.platforms, platform) && ranks >= rule.min_ranks && ranks <= rule.max_ranks &&
         nodes >= rule.min_nodes && nodes <= rule.max_nodes;
}

decision select(const configuration& configuration, const query& query, const availability& available,
                bool trace) {
  decision result;
  for (auto rule = configuration.rules.rbegin(); rule != configuration.rules.rend(); ++rule) {
    const bool fits = matches(*rule, query);
    if (result.winner != nullptr) {  // only in a trace
      result.rejections.push_back({&*rule, fits ? "it matches, but a later rule won" : mismatch(*rule, query)});
      continue;
    }
    const char* why = fits ? available(rule->backend, rule->algorithm) : nullptr;
    if (fits && why == nullptr) {
      result.winner = &*rule;
      result.reason = fmt::format("rule \"{}\" ({})", rule->text, rule->source);
      if (!trace) return result;
    } else if (trace) {
      result.rejections.push_back({&*rule, fits ? unavailable(*rule, why) : mismatch(*rule, query), fits});
    }
  }
  if (result.winner == nullptr)
    result.reason =
        fmt::format("none of {} rules matches and has an available backend", configuration.rules.size());
  return result;
}

}  // namespace isthmus::selection
