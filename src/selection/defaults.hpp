#pragma once

#include <string_view>

namespace isthmus::selection {

// The text of defaults.toml and of the folders' options.toml, embedded at build time so that the library needs
// no file.
extern const std::string_view default_configuration;

}  // namespace isthmus::selection
