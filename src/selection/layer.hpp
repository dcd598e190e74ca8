// One source of configuration, read but not yet merged, and the merge of all of them.
#pragma once

#include <string_view>
#include <utility>

#include "selection/names.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {

// A setting and where it stands, spelled as in rule::source.
template <typename Value>
struct config_setting {
  Value value;
  std::string source;
};

// What one source says about memory_settings.
struct memory_layer {
  // Either names, which replace the list so far, or names behind "-", which are taken out of it.
  std::optional<config_setting<std::vector<std::string>>> providers;
  std::optional<bool> pool;
  std::optional<std::uint64_t> pool_max_bytes, pool_keep_bytes;
};

// The options that [backend.X] has for each X of `of`: an item [[options]] in the folder of whoever reads them.
struct option_declaration {
  std::vector<std::string> sections;
  std::vector<std::string> names;  // '#' at the end stands for a number
  bool is_backend = true;          // false: only a section; a rule can't name it
};

struct config_layer {
  std::optional<config_setting<std::string>> default_backend;
  std::optional<config_setting<std::int64_t>> threshold;
  std::optional<double> timeout_s;
  std::optional<bool> check, deterministic;
  std::vector<std::pair<isthmus_platform, config_setting<std::string>>> vendor_backends;  // [platform.<name>]
  // The built-in defaults alone say the next three. Who stands for MPI in the threshold's shorthand
  // (ISTHMUS_PLATFORM_COUNT: on any platform), configuration::tensor_parallel_backend, and who has which
  // options.
  std::vector<std::pair<isthmus_platform, std::string>> mpi_backends;
  std::string tensor_parallel_backend;
  std::vector<option_declaration> declared_options;
  std::vector<selection_rule> rules;     // in order
  std::optional<selection_rule> forced;  // ISTHMUS_BACKEND: this rule and no other
  std::vector<std::pair<std::string, isthmus_platform>> sycl_backends;
  std::vector<std::pair<std::string, std::string>> plugins;
  std::vector<std::pair<std::string, std::string>> options;  // keys as in configuration::options
  memory_layer memory;
  std::string file;  // "" for the built-in text and the environment
};

// Parses TOML `text`. `name` stands in error messages, `kind` ("config", "profile") in the sources of
// rules; the built-in defaults have kind "default" and no place. Relative plug-in paths with a slash are
// taken from the folder of `name`. Throws error (CONFIG).
config_layer read_toml(std::string_view text, const std::string& name, std::string_view kind);

// Reads the ISTHMUS_* variables (docs/selection.md). Throws error (CONFIG) that names the variable.
config_layer read_environment();

// The embedded text of defaults.toml and of the options.toml of the folders.
const config_layer& built_in_defaults();

// Merges layers, later ones winning, and expands thresholds and default backends to rules.
configuration merge(const std::vector<config_layer>& layers);

}  // namespace isthmus::selection
