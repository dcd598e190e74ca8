#include "selection/names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/tables.hpp"

namespace isthmus::selection {
namespace {

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

}  // namespace isthmus::selection
