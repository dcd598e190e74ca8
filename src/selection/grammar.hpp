// Parsing and formatting of configuration values (docs/reference/configuration.md), including the names of the
// collective table and suggestions for misspelled names. All sources of rules use these functions, so that a rule has
// the same meaning in files, in environment variables and in the output of explain.
//
// Errors: all functions throw grammar_error.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "selection/selection.hpp"

namespace isthmus::selection {

// A syntax error without a location. The code that reads the TOML file or environment variable catches it and
// throws error (CONFIG), with the location prepended.
struct grammar_error : std::exception {
  explicit grammar_error(std::string message_text, std::string hint_text = {})
      : message(std::move(message_text)), hint(std::move(hint_text)) {}
  const char* what() const noexcept override { return message.c_str(); }

  std::string message;
  std::string hint;
};

// Returns all names of one enumeration, indexed by value.
std::span<const std::string_view> collective_names() noexcept;
std::span<const std::string_view> datatype_names() noexcept;
std::span<const std::string_view> op_names() noexcept;
std::span<const std::string_view> platform_names() noexcept;

// Returns the index of a name. Throws grammar_error with the allowed names and the closest name. `subject` is
// what the names denote ("collective").
std::size_t parse_name(std::string_view subject, std::span<const std::string_view> names,
                       std::string_view text);

// Creates the grammar_error that parse_name throws. Use it for lists that are not enumerations.
grammar_error unknown_name(std::string_view subject, std::span<const std::string_view> names,
                           std::string_view text);

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
// Returns true for fields whose value is a list (collective, platform, datatype, op).
bool is_list_field(std::string_view field) noexcept;

// Sets one field of a rule. For list fields, call it once per value.
void set_field(selection_rule& target, std::string_view field, std::string_view value);
// Checks that the rule names a backend, and sets its text.
void finish_rule(selection_rule& target);

// Returns the rule as text in the syntax of ISTHMUS_RULE: FIELD=VALUE pairs, the last one is use. Filters that match
// everything are omitted.
std::string describe(const selection_rule& rule);

// Returns "4..8", "4.." or "4", in the format that set_field parses for ranks and nodes.
std::string format_count_range(int min, int max);

}  // namespace isthmus::selection
