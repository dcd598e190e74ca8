// Formatting, splitting and hashing of text.
#pragma once

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isthmus {

// Formats a list as "0, 1 and 3". After 16 items, the rest is summarized as "and 5 more".
template <typename Item>
std::string format_list(const std::vector<Item>& items) {
  constexpr std::size_t max_items = 16;
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == max_items) return text + fmt::format(" and {} more", items.size() - i);
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == items.size() ? " and " : ", ", items[i]);
  }
  return text;
}

// Formats a device for messages: "cuda:1".
inline std::string format_device(isthmus_device device) {
  return fmt::format("{}:{}", isthmus_platform_name(device.platform), device.ordinal);
}

// Escapes control characters and bytes that are not UTF-8 as \n, \x1b, ..., so that a name of a file, host or program
// cannot forge lines of a log, and every message is one line of UTF-8.
std::string printable(std::string_view text);

// Returns the length of `text` cut to at most `max_bytes`, without cutting a UTF-8 character.
std::size_t truncated_length(std::string_view text, std::size_t max_bytes) noexcept;

// Returns true for names of backends, algorithms and options: [a-z][a-z0-9_]*.
constexpr bool is_identifier(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !text.empty() && is_lower(text.front()) &&
         std::ranges::all_of(text, [&](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

inline std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

// FNV-1a, a hash that is the same on every rank and in every build (std::hash is not).
class fnv1a_hash {
 public:
  constexpr void add(std::uint64_t word) { m_value = (m_value ^ word) * 1099511628211u; }
  constexpr std::uint64_t value() const { return m_value; }

 private:
  std::uint64_t m_value = 14695981039346656037u;
};

// Hashes a text byte by byte.
constexpr std::uint64_t fnv1a(std::string_view text) {
  fnv1a_hash hash;
  for (const char c : text) hash.add(static_cast<unsigned char>(c));
  return hash.value();
}

}  // namespace isthmus
