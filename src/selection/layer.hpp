// One source of configuration, read but not yet merged, and the merge of all of them.
#pragma once

#include <string_view>
#include <utility>

#include "selection/names.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {

// A setting and where it stands, spelled as in rule::source.
template <typename Value>
struct placed {
  Value value;
  std::string source;
};

// What one source says about memory_settings.
struct memory_layer {
  // Either names, which replace the list so far, or names behind "-", which are taken out of it.
  std::optional<placed<std::vector<std::string>>> providers;
  std::optional<bool> pool;
  std::optional<std::uint64_t> pool_max_bytes, pool_keep_bytes;
};

struct layer {
  std::optional<placed<std::string>> default_backend;
  std::optional<placed<std::int64_t>> threshold;
  std::optional<double> timeout_s;
  std::vector<std::pair<isthmus_platform, placed<std::string>>> vendor_backends;  // [platform.<name>]
  std::vector<rule> rules;                                                        // in order
  std::optional<rule> forced;  // ISTHMUS_BACKEND: this rule and no other
  std::vector<std::pair<std::string, isthmus_platform>> sycl_backends;
  std::vector<std::pair<std::string, std::string>> plugins;
  std::vector<std::pair<std::string, std::string>> options;  // keys as in configuration::options
  memory_layer memory;
  std::string file;  // "" for the built-in text and the environment
};

// Parses TOML `text`. `name` stands in error messages, `kind` ("config", "profile") in the sources of
// rules; the built-in defaults have kind "default" and no place. Relative plug-in paths with a slash are
// taken from the folder of `name`. Throws error (CONFIG).
layer read_toml(std::string_view text, const std::string& name, std::string_view kind);

// Reads the ISTHMUS_* variables (docs/selection.md). Throws error (CONFIG) that names the variable.
layer read_environment();

// Merges layers, later ones winning, and expands thresholds and default backends to rules.
configuration merge(const std::vector<layer>& layers);

}  // namespace isthmus::selection
