// One source of configuration after parsing (config_layer), and merging of all sources.
#pragma once

#include <string_view>
#include <utility>

#include "selection/selection.hpp"

namespace isthmus::selection {

// A setting and its source, in the format of selection_rule::source.
template <typename Value>
struct config_setting {
  Value value;
  std::string source;
};

// The memory_settings of one source.
struct memory_layer {
  // Either plain names, which replace the list, or names with a "-" prefix, which are removed from the list.
  std::optional<config_setting<std::vector<std::string>>> providers;
  std::optional<bool> pool;
  std::optional<std::uint64_t> pool_max_block_bytes, pool_keep_bytes;
};

// The option names of the sections [backend.X], for each X in `sections`. Declared as [[options]] in the
// options.toml of the component that reads them.
struct option_declaration {
  std::vector<std::string> sections;
  std::vector<std::string> names;  // a trailing '#' represents a number
  bool is_backend = true;          // false: the name denotes only a section, not a backend that rules can name
};

struct config_layer {
  std::optional<config_setting<std::string>> default_backend;
  std::optional<config_setting<std::int64_t>> threshold;
  std::optional<double> timeout_s;
  std::optional<bool> check, deterministic;
  // The keys `backend` and `fallback` of [platform.<name>].
  std::vector<std::pair<isthmus_platform, config_setting<std::string>>> vendor_backends, fallback_backends;
  // Only the built-in defaults set the next three members: the backend that represents MPI in the threshold
  // shorthand, configuration::tensor_parallel_backend, and the option declarations.
  std::string mpi_backend;
  std::string tensor_parallel_backend;
  std::vector<option_declaration> declared_options;
  std::vector<selection_rule> rules;          // in order
  std::optional<selection_rule> forced_rule;  // ISTHMUS_BACKEND: replaces all other rules
  std::vector<std::pair<std::string, isthmus_platform>> sycl_backends;
  std::vector<std::pair<std::string, std::string>> plugins;
  std::vector<std::pair<std::string, std::string>> options;  // keys as in configuration::options
  memory_layer memory;
  std::vector<std::pair<std::string, std::string>> measured;  // [measured], see tuning_profile; profiles only
  std::string file;                                           // "" for the built-in text and the environment
};

// Parses TOML `text`. `name` appears in error messages, `kind` ("config" or "profile") in the sources of rules.
// The built-in defaults have kind "default" and no location. Relative plug-in paths that contain a slash are
// resolved relative to the folder of `name`. Throws error (CONFIG).
config_layer read_toml(std::string_view text, const std::string& name, std::string_view kind);

// Logs one warning for each ISTHMUS_* environment variable that does not exist, and suggests the most similar one.
void warn_about_unknown_variables();

// Reads the ISTHMUS_* environment variables (docs/reference/configuration.md). Throws error (CONFIG) with the
// name of the variable.
config_layer read_environment();

// defaults.toml and the options.toml files of backends and operators, embedded at build time so that the library
// needs no configuration file. The definition is generated.
extern const std::string_view default_configuration;
// Returns its parsed contents.
const config_layer& built_in_defaults();

// Merges layers and expands thresholds and default backends to rules. Later layers take precedence.
configuration merge(const std::vector<config_layer>& layers);

}  // namespace isthmus::selection
