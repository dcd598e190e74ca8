// UTF-8 characters of text that is printed. Preloaded libraries use this header, so it needs only the C library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace isthmus {

// Returns the number of bytes of the UTF-8 character at the start of `text`, or 0 if it is invalid or a control character.
// Precondition: `text` is not empty.
inline std::size_t printable_length(std::string_view text) noexcept {
  const auto byte_at = [text](std::size_t index) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text.data()[index]));
  };
  const std::uint32_t first = byte_at(0);
  const std::size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4 || length > text.size()) return 0;
  std::uint32_t code = length == 1 ? first : first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte_at(i) & 0x3f);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return is_overlong || is_surrogate || is_control || code > 0x10ffff ? 0 : length;
}

// A byte as \n, \r, \t or \x1b.
struct escaped_byte {
  explicit escaped_byte(char byte) noexcept {
    const char name = byte == '\n' ? 'n' : byte == '\r' ? 'r' : byte == '\t' ? 't' : '\0';
    if (name != '\0')
      std::snprintf(text, sizeof text, "\\%c", name);
    else
      std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  }
  char text[5];
};

}  // namespace isthmus
