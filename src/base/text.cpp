#include "base/text.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace isthmus {
namespace {

std::uint32_t byte_at(std::string_view text, std::size_t index) {
  return static_cast<unsigned char>(text[index]);
}

// Returns the bytes of the UTF-8 character at the start of `text`, or 0 if it is invalid or a control character.
std::size_t character_length(std::string_view text) {
  const std::uint32_t first = byte_at(text, 0);
  const std::size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4 || length > text.size()) return 0;
  std::uint32_t code = length == 1 ? first : first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte_at(text, i) & 0x3f);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return is_overlong || is_surrogate || is_control || code > 0x10ffff ? 0 : length;
}

std::string escaped(char byte) {
  switch (byte) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0)
      result += escaped(text.front());
    else
      result += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

std::size_t truncated_length(std::string_view text, std::size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text.size();
  while (max_bytes > 0 && (byte_at(text, max_bytes) & 0xc0) == 0x80) --max_bytes;
  return max_bytes;
}

}  // namespace isthmus
