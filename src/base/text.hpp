// Pieces of sentences, and texts taken apart.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

// "0, 1 and 3"; of many the first 16, "and 5 more".
std::string format_list(const std::vector<std::string>& items);
std::string format_list(const std::vector<int>& numbers);

std::vector<std::string> split_lines(const std::string& text);

}  // namespace isthmus
