#include "selection/options.hpp"

#include <algorithm>

#include "selection/layer.hpp"

namespace isthmus::selection {

std::optional<std::vector<std::string_view>> options_of(std::string_view backend) {
  for (const option_declaration& declaration : built_in_defaults().declared_options)
    if (std::ranges::find(declaration.sections, backend) != declaration.sections.end())
      return std::vector<std::string_view>(declaration.names.begin(), declaration.names.end());
  return std::nullopt;
}

bool is_option(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::any_of(names, [&](std::string_view pattern) {
    if (!pattern.ends_with('#')) return pattern == name;
    const std::string_view stem = pattern.substr(0, pattern.size() - 1);
    if (!name.starts_with(stem) || name.size() == stem.size()) return false;
    const std::string_view number = name.substr(stem.size());
    return std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  });
}

bool is_code_option(std::string_view key) { return key.ends_with("library") || key.ends_with("site_packages"); }

}  // namespace isthmus::selection
