// Parsing and formatting of configuration values (docs/reference/configuration.md). All sources of rules
// use these functions, so that a rule has the same meaning in files, in environment variables and in the
// output of explain.
//
// Errors: all functions throw grammar_error.
#pragma once

#include "selection/names.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {

// Upper end of an open range ("1M..").
inline constexpr std::uint64_t unbounded_bytes = std::numeric_limits<std::uint64_t>::max();
inline constexpr int unbounded_count = std::numeric_limits<int>::max();

// Parses a size such as "4096", "64K", "1M" or "2G". Units are binary, and the maximum is 2^63.
std::uint64_t parse_size(std::string_view text);
// Returns the shortest text that parse_size converts back to `bytes`.
std::string format_size(std::uint64_t bytes);

// Parses a size of at most 2^63 - 1, or a negative number.
std::int64_t parse_threshold(std::string_view text);
// Parses a number of seconds in (0, 1e9].
double parse_seconds(std::string_view text);
// Parses a backend, plug-in, algorithm or option name: [a-z][a-z0-9_]*.
std::string parse_identifier(std::string_view subject, std::string_view text);
isthmus_platform parse_platform(std::string_view text);
// Parses "true" or "false".
bool parse_flag(std::string_view subject, std::string_view text);

// Adds one word to a list of memory providers: "umf", "direct" or "sycl". Either all or none of the words have
// a "-" prefix, which excludes the provider.
void add_provider(std::vector<std::string>& providers, std::string_view word);

// Returns the names of the fields of a rule, including "use".
std::span<const std::string_view> rule_fields() noexcept;
// Returns true for fields whose value is a list (collective, platform, datatype).
bool is_list_field(std::string_view field) noexcept;

// Sets one field of a rule. For list fields, call it once per value.
void set_field(selection_rule& target, std::string_view field, std::string_view value);
// Checks that the rule names a backend, and sets its text.
void finish_rule(selection_rule& target);

// Returns the filters of a rule as (field, value) pairs. Filters that match everything are omitted. Lists are
// joined with ",". The last pair is "use".
std::vector<std::pair<std::string, std::string>> fields_of(const selection_rule& rule);
std::string describe(const selection_rule& rule);

// Returns "4..8", "4.." or "4", in the format that set_field parses for ranks and nodes.
std::string format_count_range(int min, int max);

}  // namespace isthmus::selection
