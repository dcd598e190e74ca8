#include "base/text.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <sstream>
#include <utility>

namespace isthmus {

std::string enumerate(const std::vector<std::string>& items) {
  constexpr std::size_t most = 16;
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == most) return text + fmt::format(" and {} more", items.size() - i);
    text += i == 0 ? "" : i + 1 == items.size() ? " and " : ", ";
    text += items[i];
  }
  return text;
}

std::string enumerate(const std::vector<int>& numbers) {
  std::vector<std::string> items;
  for (const int number : numbers) items.push_back(std::to_string(number));
  return enumerate(items);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace isthmus
