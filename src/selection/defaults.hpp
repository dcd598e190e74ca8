#pragma once

#include <string_view>

namespace isthmus::selection {

// defaults.toml and the options.toml files of backends and operators, embedded at build time so that the
// library needs no configuration file.
extern const std::string_view default_configuration;

}  // namespace isthmus::selection
