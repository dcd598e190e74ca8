#include "base/text.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <sstream>
#include <utility>

namespace isthmus {

std::string format_list(const std::vector<std::string>& items) {
  constexpr std::size_t max_items = 16;
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == max_items) return text + fmt::format(" and {} more", items.size() - i);
    text += i == 0 ? "" : i + 1 == items.size() ? " and " : ", ";
    text += items[i];
  }
  return text;
}

std::string format_list(const std::vector<int>& numbers) {
  std::vector<std::string> items;
  for (const int number : numbers) items.push_back(std::to_string(number));
  return format_list(items);
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace isthmus
