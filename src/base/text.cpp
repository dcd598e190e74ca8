#include "base/text.hpp"

#include <cstddef>
#include <string>
#include <string_view>

#include "base/characters.hpp"

namespace isthmus {

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = printable_length(text);
    if (length == 0)
      result += escaped_byte(text.front()).text;
    else
      result += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

std::size_t truncated_length(std::string_view text, std::size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text.size();
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xc0) == 0x80) --max_bytes;
  return max_bytes;
}

}  // namespace isthmus
