// Formatting and splitting of text.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

// Formats a list as "0, 1 and 3". After 16 items, the rest is summarized as "and 5 more".
std::string format_list(const std::vector<std::string>& items);
std::string format_list(const std::vector<int>& numbers);

std::vector<std::string> split_lines(const std::string& text);

}  // namespace isthmus
