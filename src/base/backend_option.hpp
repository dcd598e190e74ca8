// Parsing of backend options.
#pragma once

#include <fmt/format.h>
#include <isthmus/backend.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace isthmus {

// The message contains the option, its value and the rule. The backend reports it as ISTHMUS_ERROR_CONFIG.
struct option_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the option backend.<backend>.<key>. Returns `default_value` if the option is not
// set. Throws option_error.
inline std::uint64_t read_integer_option(const isthmus_backend_context& context, const char* backend,
                                         const char* key, std::uint64_t default_value, std::uint64_t min_value,
                                         std::uint64_t max_value) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return default_value;
  std::uint64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [parse_end, parse_error] = std::from_chars(text, end, value);
  if (parse_error != std::errc() || parse_end != end || value < min_value || value > max_value)
    throw option_error(fmt::format("backend.{}.{} is \"{}\"; it must be a whole number from {} to {}", backend,
                                   key, text, min_value, max_value));
  return value;
}

}  // namespace isthmus
