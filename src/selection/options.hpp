// Names of the options [backend.<name>] of this project's backends. Each backend declares its options in
// options.toml, so that a misspelled option is an error, even if the build lacks the backend. Third-party
// plug-ins check their own options.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace isthmus::selection {

// Returns the option names of a backend, or nullopt if the backend has no declaration.
std::optional<std::vector<std::string_view>> options_of(std::string_view backend);

// Returns true if `name` is one of `names`. A trailing '#' in `names` matches a number ("bf16_elements_4").
bool is_option(std::span<const std::string_view> names, std::string_view name);

// Returns true if the option "backend.<name>.<option>" causes code to be loaded.
bool is_code_option(std::string_view key);

}  // namespace isthmus::selection
