#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <string>

#include "base/error.hpp"
#include "operators/tensor_parallel/tensor_parallel.hpp"

namespace isthmus::tensor_parallel {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

const std::string* find_option(const selection::configuration& rules, const std::string& key) {
  const std::string* result = nullptr;
  for (const auto& [name, value] : rules.options)  // later sources override earlier ones
    if (name == key) result = &value;
  return result;
}

std::uint64_t bf16_elements(const selection::configuration& rules, int ranks) {
  const std::string& backend = rules.tensor_parallel_backend;
  for (const std::string& key : {fmt::format("backend.{}.bf16_elements_{}", backend, ranks),
                                 fmt::format("backend.{}.bf16_elements", backend)}) {
    const std::string* text = find_option(rules, key);
    if (text == nullptr) continue;
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (failure != std::errc() || end != text->data() + text->size())
      throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                       fmt::format("{} = \"{}\" must be a whole number", key, *text),
                       "write the number of float32 elements");
    return value;
  }
  return unlimited;
}

// Does not query the engine. The engine itself corrects sizes that an algorithm does not support.
isthmus_tensor_parallel_algorithm query_algorithm(const selection::configuration& rules,
                                                  isthmus_platform platform, int ranks,
                                                  isthmus_datatype datatype, std::uint64_t bytes) {
  const selection::selection_query query{.collective = ISTHMUS_ALLREDUCE,
                                         .datatype = datatype,
                                         .platform = platform,
                                         .memory = selection::memory_kind::any,
                                         .ranks = ranks,
                                         .nodes = 1,
                                         .bytes = bytes,
                                         .op = ISTHMUS_SUM};
  const auto available = [&](const selection::selection_rule& rule) -> const char* {
    return rule.backend == rules.tensor_parallel_backend && !rule.algorithm.empty()
               ? nullptr
               : "not the backend of the engine";
  };
  const auto decision = selection::select(rules, query, available, false);
  const std::string algorithm = decision.winner != nullptr ? decision.winner->algorithm : std::string();
  if (algorithm.starts_with("one_shot")) return ISTHMUS_ONE_SHOT;
  return algorithm == "two_shot_zero_copy" ? ISTHMUS_TWO_SHOT_ZERO_COPY : ISTHMUS_TWO_SHOT;
}

}  // namespace

tuning_table::tuning_table(const selection::configuration& rules, isthmus_platform platform, int ranks,
                           isthmus_wire wire)
    : m_bf16_elements(wire == ISTHMUS_WIRE_EXACT      ? unlimited
                      : wire == ISTHMUS_WIRE_BFLOAT16 ? 0
                                                      : bf16_elements(rules, ranks)) {
  std::set<std::uint64_t> edges = {0};
  for (const auto& rule : rules.rules) {
    if (!rule.has_byte_range) continue;
    edges.insert(rule.min_bytes);
    edges.insert(rule.end_bytes);
  }
  for (int i = 0; i < ISTHMUS_DATATYPE_COUNT; ++i) {
    auto& steps = m_steps[static_cast<std::size_t>(i)];
    for (const std::uint64_t edge : edges) {
      const isthmus_tensor_parallel_algorithm algorithm =
          query_algorithm(rules, platform, ranks, static_cast<isthmus_datatype>(i), edge);
      if (steps.empty() || steps.back().algorithm != algorithm) steps.push_back({edge, algorithm});
    }
  }
}

isthmus_tensor_parallel_algorithm tuning_table::algorithm(isthmus_datatype datatype,
                                                          std::uint64_t wire_bytes) const {
  const auto& steps = m_steps[datatype];
  const auto next_step = std::upper_bound(
      steps.begin(), steps.end(), wire_bytes,
      [](std::uint64_t bytes, const algorithm_range& range) { return bytes < range.begin_bytes; });
  return std::prev(next_step)->algorithm;  // the first step starts at 0
}

}  // namespace isthmus::tensor_parallel
