// Names of THE TABLE, and help for names that are not in it.
#pragma once

#include <isthmus/types.h>

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace isthmus::selection {

// A text that breaks the grammar. It does not know where it stands: the reader that does (a TOML file, an
// environment variable) catches it and throws error (CONFIG) with the place in front.
struct grammar_error : std::exception {
  explicit grammar_error(std::string message_text, std::string hint_text = {})
      : message(std::move(message_text)), hint(std::move(hint_text)) {}
  const char* what() const noexcept override { return message.c_str(); }

  std::string message;
  std::string hint;
};

// All names of one enumeration, indexed by value.
std::span<const std::string_view> collective_names() noexcept;
std::span<const std::string_view> datatype_names() noexcept;
std::span<const std::string_view> platform_names() noexcept;

// The value of a name; throws grammar_error with the allowed names and the nearest one. `what` says what
// the names are ("collective").
std::size_t parse_name(std::string_view subject, std::span<const std::string_view> names, std::string_view text);

// The grammar_error that parse_name throws, for lists that are not enumerations.
grammar_error unknown_name(std::string_view subject, std::span<const std::string_view> names,
                           std::string_view text);

}  // namespace isthmus::selection
