// The options [backend.<name>] that the backends of this project read. Each folder declares its own in a file
// options.toml, so that a misspelled one is an error and not a wish that nobody hears, also where a build lacks
// the backend. A plug-in of somebody else parses its own.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace isthmus::selection {

// The option names of a backend; nothing for one that declares none.
std::optional<std::vector<std::string_view>> options_of(std::string_view backend);

// True for one of these names: exact, or with a number in place of '#' ("bf16_elements_4").
bool is_option(std::span<const std::string_view> names, std::string_view name);

// Whether "backend.<name>.<option>" leads to code that is loaded.
bool is_code_option(std::string_view key);

}  // namespace isthmus::selection
