// What a backend reads of its options.
#pragma once

#include <fmt/format.h>
#include <isthmus/backend.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace isthmus {

// The text names option, value and rule; the backend's to report as ISTHMUS_ERROR_CONFIG.
struct bad_option : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// backend.<backend>.<key>; `otherwise` where it is not set. Throws bad_option.
inline std::uint64_t read_whole_number(const isthmus_backend_context& context, const char* backend,
                                       const char* key, std::uint64_t otherwise, std::uint64_t least,
                                       std::uint64_t most) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return otherwise;
  std::uint64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  if (problem != std::errc() || stop != end || value < least || value > most)
    throw bad_option(fmt::format("backend.{}.{} is \"{}\"; it must be a whole number from {} to {}", backend,
                                 key, text, least, most));
  return value;
}

}  // namespace isthmus
