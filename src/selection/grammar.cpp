#include "selection/grammar.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/tables.hpp"
#include "base/text.hpp"

namespace isthmus::selection {
namespace {

using namespace std::string_view_literals;

constexpr std::array field_names = {"collective"sv, "platform"sv, "datatype"sv, "op"sv, "memory"sv,
                                    "ranks"sv,      "nodes"sv,    "bytes"sv,    "use"sv};
constexpr std::array memory_names = {"any"sv, "symmetric"sv};
constexpr std::array provider_names = {"umf"sv, "direct"sv, "sycl"sv};
constexpr std::array flag_names = {"false"sv, "true"sv};
constexpr std::array units = {std::pair{'K', 10U}, std::pair{'M', 20U}, std::pair{'G', 30U}};
constexpr double max_timeout_s = 1e9;  // as in isthmus_communicator_options
constexpr std::uint64_t max_size = std::uint64_t{1} << 63U;

// Parses the whole of `text` as a number. Returns nullopt if it is not a number.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Keeps lists sorted and free of duplicates, so that equal filters have equal texts.
template <typename Value>
void insert_sorted(std::vector<Value>& list, Value value) {
  const auto position = std::lower_bound(list.begin(), list.end(), value);
  if (position == list.end() || *position != value) list.insert(position, value);
}

// Returns the two sides of "a..b". The second side is nullopt if there is no "..".
std::pair<std::string_view, std::optional<std::string_view>> split_range(std::string_view text) {
  const auto dots = text.find("..");
  if (dots == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, dots), text.substr(dots + 2)};
}

void set_bytes(selection_rule& target, std::string_view text) {
  const auto [first, last] = split_range(text);
  if (!last)
    throw grammar_error{
        fmt::format("bytes \"{}\" is not a range; allowed: \"FIRST..END\", \"FIRST..\" or "
                    "\"..END\", where END is excluded",
                    text),
        fmt::format("write \"{}..\" for that size and above, or \"0..{}\" for below it", text, text)};
  target.min_bytes = first.empty() ? 0 : parse_size(first);
  target.end_bytes = last->empty() ? unbounded_bytes : parse_size(*last);
  target.has_byte_range = true;
  if (target.min_bytes >= target.end_bytes)
    throw grammar_error{
        fmt::format("bytes \"{}\" is an empty range: the end is excluded and must be above the "
                    "start",
                    text)};
}

int parse_count(std::string_view field, std::string_view text) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value == unbounded_count)
    throw grammar_error{
        fmt::format("{} \"{}\" is not a whole number from 1 to {}", field, text, unbounded_count - 1)};
  return *value;
}

// Parses "4", "2..8" (inclusive), "2.." or "..8".
std::pair<int, int> parse_count_range(std::string_view field, std::string_view text) {
  const auto [first, last] = split_range(text);
  if (!last) {
    const int count = parse_count(field, first);
    return {count, count};
  }
  const int min = first.empty() ? 1 : parse_count(field, first);
  const int max = last->empty() ? unbounded_count : parse_count(field, *last);
  if (min > max)
    throw grammar_error{fmt::format("{} \"{}\" is inverted: {} is above {}", field, text, min, max)};
  return {min, max};
}

void set_use(selection_rule& target, std::string_view text) {
  const auto colon = text.find(':');
  target.backend = parse_identifier("backend", text.substr(0, colon));
  target.algorithm =
      colon == std::string_view::npos ? "" : parse_identifier("algorithm", text.substr(colon + 1));
}

template <typename Value>
std::string join_names(const std::vector<Value>& values, std::span<const std::string_view> names) {
  std::vector<std::string_view> texts;
  texts.reserve(values.size());
  for (Value value : values) texts.push_back(names[value]);
  return fmt::format("{}", fmt::join(texts, ","));
}

constexpr std::string_view name_of(const char* name) { return name; }
template <typename Row>
constexpr std::string_view name_of(const Row& row) {
  return row.name;
}

template <typename Row, std::size_t Size>
constexpr std::array<std::string_view, Size> names_of(const std::array<Row, Size>& rows) {
  std::array<std::string_view, Size> names;
  std::transform(rows.begin(), rows.end(), names.begin(), [](const Row& row) { return name_of(row); });
  return names;
}

constexpr std::array collective_list = names_of(collective_table::rows);
constexpr std::array datatype_list = names_of(collective_table::datatypes);
constexpr std::array op_list = names_of(collective_table::op_names);
// The platforms of the collective table, followed by "mixed": ranks on several platforms.
constexpr auto platform_list = [] {
  std::array<std::string_view, ISTHMUS_PLATFORM_COUNT + 1> names;
  std::ranges::copy(names_of(collective_table::platform_names), names.begin());
  names.back() = "mixed";
  return names;
}();

// Returns the minimum number of edits (insert, delete, replace, swap adjacent letters) that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replace_cost = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replace_cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

// Returns true if the letters of `text` appear in `name` in this order, as in abbreviations ("bcast", "f32").
bool is_abbreviation(std::string_view text, std::string_view name) {
  std::size_t match_count = 0;
  for (const char letter : name) {
    if (match_count < text.size() && letter == text[match_count]) ++match_count;
  }
  return match_count == text.size();
}

// Returns the name closest to `text`, or "" if none is close enough to be a plausible suggestion.
std::string_view find_nearest(std::span<const std::string_view> names, std::string_view text) {
  constexpr std::size_t max_length = 64;  // longer than any name; limits the work for arbitrary input
  if (text.size() > max_length) return {};
  std::string_view best;
  std::size_t best_distance = text.size() / 3 + 1;
  for (std::string_view name : names) {
    const std::size_t distance = edit_distance(text, name);
    if (distance < best_distance || (distance == best_distance && best.empty())) {
      best = name;
      best_distance = distance;
    }
  }
  if (!best.empty() || text.size() < 2) return best;
  const auto match =
      std::find_if(names.begin(), names.end(), [&](auto name) { return is_abbreviation(text, name); });
  return match == names.end() ? best : *match;
}

}  // namespace

std::span<const std::string_view> collective_names() noexcept { return collective_list; }
std::span<const std::string_view> datatype_names() noexcept { return datatype_list; }
std::span<const std::string_view> op_names() noexcept { return op_list; }
std::span<const std::string_view> platform_names() noexcept { return platform_list; }

grammar_error unknown_name(std::string_view subject, std::span<const std::string_view> names,
                           std::string_view text) {
  grammar_error result(fmt::format("unknown {} \"{}\"; allowed: {}", subject, text, fmt::join(names, ", ")));
  const std::string_view suggestion = find_nearest(names, text);
  if (!suggestion.empty()) result.hint = fmt::format("did you mean \"{}\"?", suggestion);
  return result;
}

std::size_t parse_name(std::string_view subject, std::span<const std::string_view> names,
                       std::string_view text) {
  const auto position = std::find(names.begin(), names.end(), text);
  if (position == names.end()) throw unknown_name(subject, names, text);
  return static_cast<std::size_t>(position - names.begin());
}

std::uint64_t parse_size(std::string_view text) {
  std::string_view digits = text;
  unsigned shift = 0;
  for (const auto& [letter, bits] : units) {
    if (!digits.empty() && digits.back() == letter) {
      shift = bits;
      digits.remove_suffix(1);
      break;
    }
  }
  const bool is_number =
      !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number)
    throw grammar_error{
        fmt::format("size \"{}\" is not a number of bytes; allowed: digits and one of the "
                    "units K, M, G (1024, 1024^2, 1024^3)",
                    text)};
  const auto value = parse_number<std::uint64_t>(digits);
  if (!value || *value > (max_size >> shift))
    throw grammar_error{fmt::format("size \"{}\" is above 2^63 bytes", text)};
  return *value << shift;
}

std::string format_size(std::uint64_t bytes) {
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const std::uint64_t unit_bytes = std::uint64_t{1} << unit->second;
    if (bytes != 0 && bytes % unit_bytes == 0) return fmt::format("{}{}", bytes / unit_bytes, unit->first);
  }
  return fmt::format("{}", bytes);
}

std::int64_t parse_threshold(std::string_view text) {
  if (text.starts_with('-')) {
    if (const auto value = parse_number<std::int64_t>(text)) return *value;
    throw grammar_error{
        fmt::format("threshold \"{}\" is not a number of bytes; allowed: a size such as 64K, 0 "
                    "(always the vendor's backend) or -1 (always mpi)",
                    text)};
  }
  const std::uint64_t size = parse_size(text);
  if (size >= max_size) throw grammar_error{fmt::format("threshold \"{}\" is above 2^63 - 1", text)};
  return static_cast<std::int64_t>(size);
}

double parse_seconds(std::string_view text) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    throw grammar_error{fmt::format("timeout_s \"{}\" is not a positive number of seconds", text)};
  if (*value > max_timeout_s)
    throw grammar_error{fmt::format("timeout_s \"{}\" is above {:.0f} seconds (30 years)", text, max_timeout_s),
                        "write 1e9 for a practically unlimited timeout"};
  return *value;
}

std::string parse_identifier(std::string_view subject, std::string_view text) {
  if (!is_identifier(text))
    throw grammar_error{
        fmt::format("{} \"{}\" is not a name; allowed: a lower-case letter, then lower-case "
                    "letters, digits and _",
                    subject, text)};
  return std::string(text);
}

isthmus_platform parse_platform(std::string_view text) {
  return static_cast<isthmus_platform>(parse_name("platform", platform_names(), text));
}

bool parse_flag(std::string_view subject, std::string_view text) {
  return parse_name(subject, flag_names, text) == 1;
}

void add_provider(std::vector<std::string>& providers, std::string_view word) {
  const bool is_exclusion = word.starts_with('-');
  parse_name("memory provider", provider_names, is_exclusion ? word.substr(1) : word);
  if (std::find(providers.begin(), providers.end(), word) != providers.end())
    throw grammar_error{fmt::format("memory provider \"{}\" is given twice", word)};
  if (!providers.empty() && providers.front().starts_with('-') != is_exclusion)
    throw grammar_error{
        fmt::format("memory providers \"{}\" and \"{}\" mix two forms", providers.front(), word),
        "list the providers to use in order, or prefix each provider to exclude with -"};
  providers.emplace_back(word);
}

std::span<const std::string_view> rule_fields() noexcept { return field_names; }

bool is_list_field(std::string_view field) noexcept {
  return field == "collective" || field == "platform" || field == "datatype" || field == "op";
}

void set_field(selection_rule& target, std::string_view field, std::string_view value) {
  if (field == "collective") {
    insert_sorted(target.collectives,
                  static_cast<isthmus_collective>(parse_name("collective", collective_names(), value)));
  } else if (field == "platform") {
    insert_sorted(target.platforms, parse_platform(value));
  } else if (field == "datatype") {
    insert_sorted(target.datatypes,
                  static_cast<isthmus_datatype>(parse_name("datatype", datatype_names(), value)));
  } else if (field == "op") {
    insert_sorted(target.ops, static_cast<isthmus_reduction_op>(parse_name("op", op_names(), value)));
  } else if (field == "memory") {
    target.memory = static_cast<memory_kind>(parse_name("memory", memory_names, value));
  } else if (field == "ranks") {
    std::tie(target.min_ranks, target.max_ranks) = parse_count_range("ranks", value);
  } else if (field == "nodes") {
    std::tie(target.min_nodes, target.max_nodes) = parse_count_range("nodes", value);
  } else if (field == "bytes") {
    set_bytes(target, value);
  } else if (field == "use") {
    set_use(target, value);
  } else {
    throw unknown_name("key", field_names, field);
  }
}

void finish_rule(selection_rule& target) {
  if (target.backend.empty())
    throw grammar_error{"the rule has no use: it must name a backend",
                        "add use = \"BACKEND\" or use = \"BACKEND:ALGORITHM\""};
  target.text = describe(target);
}

std::string format_count_range(int min, int max) {
  if (max == unbounded_count) return fmt::format("{}..", min);
  return min == max ? fmt::format("{}", min) : fmt::format("{}..{}", min, max);
}

std::string describe(const selection_rule& rule) {
  std::string text;
  const auto add = [&text](const char* field, const std::string& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", field, value);
  };
  if (!rule.collectives.empty()) add("collective", join_names(rule.collectives, collective_names()));
  if (!rule.platforms.empty()) add("platform", join_names(rule.platforms, platform_names()));
  if (!rule.datatypes.empty()) add("datatype", join_names(rule.datatypes, datatype_names()));
  if (!rule.ops.empty()) add("op", join_names(rule.ops, op_names()));
  if (rule.memory != memory_kind::any) add("memory", "symmetric");
  if (rule.min_ranks != 1 || rule.max_ranks != unbounded_count)
    add("ranks", format_count_range(rule.min_ranks, rule.max_ranks));
  if (rule.min_nodes != 1 || rule.max_nodes != unbounded_count)
    add("nodes", format_count_range(rule.min_nodes, rule.max_nodes));
  if (rule.has_byte_range)
    add("bytes", fmt::format("{}..{}", format_size(rule.min_bytes),
                             rule.end_bytes == unbounded_bytes ? "" : format_size(rule.end_bytes)));
  add("use", rule.algorithm.empty() ? rule.backend : rule.backend + ":" + rule.algorithm);
  return text;
}

}  // namespace isthmus::selection
