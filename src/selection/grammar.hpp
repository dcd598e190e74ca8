// The values of the configuration grammar (docs/selection.md), as text. Every reader of rules goes
// through here, so a rule means the same in a file, in the environment and in what explain prints.
// All functions throw grammar_error.
#pragma once

#include "selection/names.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {

// No upper end: bytes and ranks of an open range ("1M..").
inline constexpr std::uint64_t unbounded_bytes = std::numeric_limits<std::uint64_t>::max();
inline constexpr int unbounded_count = std::numeric_limits<int>::max();

// "4096", "64K", "1M", "2G": binary units, at most 2^63.
std::uint64_t parse_size(std::string_view text);
// The shortest text that parse_size reads back.
std::string format_size(std::uint64_t bytes);

// A size, or a negative number; at most 2^63 - 1.
std::int64_t parse_threshold(std::string_view text);
// A number of seconds in (0, 1e9].
double parse_seconds(std::string_view text);
// A backend, plug-in, algorithm or option name: [a-z][a-z0-9_]*.
std::string parse_identifier(std::string_view subject, std::string_view text);
isthmus_platform parse_platform(std::string_view text);
// "true" or "false".
bool parse_flag(std::string_view subject, std::string_view text);

// Adds one word to a list of memory providers: "umf", "direct", "sycl", or all of them behind "-".
void add_provider(std::vector<std::string>& providers, std::string_view word);

// Names of the fields of a rule, "use" included.
std::span<const std::string_view> rule_fields() noexcept;
// True for the fields that take a list (collective, platform, datatype).
bool is_list_field(std::string_view field) noexcept;

// Sets one field of a rule; list fields are called once for each value.
void set_field(selection_rule& target, std::string_view field, std::string_view value);
// Checks that the rule says what to use and fills its text.
void finish_rule(selection_rule& target);

// The filters of a rule as (field, value) in the grammar, without those that match everything; list
// values are joined with ",". The last one is "use".
std::vector<std::pair<std::string, std::string>> fields_of(const selection_rule& rule);
std::string describe(const selection_rule& rule);

// "4..8", "4..", "4": what set_field reads for ranks and nodes.
std::string format_count_range(int min, int max);

}  // namespace isthmus::selection
