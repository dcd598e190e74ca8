// Names of the collective table, and suggestions for misspelled names.
#pragma once

#include <isthmus/types.h>

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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
std::span<const std::string_view> platform_names() noexcept;

// Returns the index of a name. Throws grammar_error with the allowed names and the closest name. `subject` is
// what the names denote ("collective").
std::size_t parse_name(std::string_view subject, std::span<const std::string_view> names,
                       std::string_view text);

// Creates the grammar_error that parse_name throws. Use it for lists that are not enumerations.
grammar_error unknown_name(std::string_view subject, std::span<const std::string_view> names,
                           std::string_view text);

}  // namespace isthmus::selection
