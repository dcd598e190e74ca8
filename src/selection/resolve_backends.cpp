#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "selection/grammar.hpp"
#include "selection/layer.hpp"

namespace isthmus::selection {
namespace {

// Runs a check and prepends `source` to its error message.
template <typename Function>
void check_with_source(const std::string& source, Function&& check) {
  try {
    check();
  } catch (const grammar_error& failure) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("{}: {}", source, failure.message),
                     failure.hint);
  }
}

// Returns the index of the rule's algorithm in the backend's list, or -1 if the rule names none.
int find_algorithm(const selection_rule& rule, const known_backend& backend) {
  if (rule.algorithm.empty()) return -1;
  const std::vector<std::string_view> names(backend.algorithms.begin(), backend.algorithms.end());
  if (names.empty())
    throw grammar_error{
        fmt::format("backend {} has no algorithms, but the rule requires \"{}\"", backend.name, rule.algorithm),
        fmt::format("write use = \"{}\"", backend.name)};
  return static_cast<int>(
      parse_name(fmt::format("algorithm of backend {}", backend.name), names, rule.algorithm));
}

// Returns the backend name in an option key, for example "shm" in "backend.shm.spin_us".
std::string_view backend_name_of(std::string_view key) {
  const auto first = key.find('.') + 1;
  return key.substr(first, key.find('.', first) - first);
}

// Throws unless `name` is one of `names`.
void check_backend_name(std::string_view name, std::span<const std::string_view> names,
                        const std::vector<skipped_plugin>& skipped_plugins) {
  if (std::ranges::find(names, name) != names.end()) return;
  grammar_error failure = unknown_name("backend", names, name);
  for (const auto& [stem, reason] : skipped_plugins) {
    const bool is_meant = stem.empty() || stem == name || stem == fmt::format("lib{}", name) ||
                          stem == fmt::format("libisthmus_{}", name);
    if (!is_meant) continue;
    failure.message += fmt::format("; skipped {}", reason);
    failure.hint.clear();
  }
  if (failure.hint.empty())
    failure.hint = "run isthmus info, which lists all backends and skipped plug-ins, or remove this setting";
  throw failure;
}

// Returns the option names of a backend, or nullopt if the backend has no declaration. Each backend of this project
// declares its options in options.toml, so that a misspelled option is an error, even if the build lacks the
// backend. Third-party plug-ins check their own options.
std::optional<std::vector<std::string_view>> options_of(std::string_view backend) {
  for (const option_declaration& declaration : built_in_defaults().declared_options)
    if (std::ranges::find(declaration.sections, backend) != declaration.sections.end())
      return std::vector<std::string_view>(declaration.names.begin(), declaration.names.end());
  return std::nullopt;
}

// Returns true if `name` is one of `names`. A trailing '#' in `names` matches a number ("bf16_elements_4").
bool is_option(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::any_of(names, [&](std::string_view pattern) {
    if (!pattern.ends_with('#')) return pattern == name;
    const std::string_view stem = pattern.substr(0, pattern.size() - 1);
    if (!name.starts_with(stem) || name.size() == stem.size()) return false;
    const std::string_view number = name.substr(stem.size());
    return std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  });
}

void check_option(std::string_view backend, std::string_view option) {
  const auto names = options_of(backend);
  if (!names || is_option(*names, option)) return;
  throw unknown_name(fmt::format("option of backend {}", backend), *names, option);
}

// Returns true for backends whose options the built-in defaults set. A build can lack these backends, just as
// it can lack backends of default rules. Reads the defaults directly, because a forced backend removes their
// rules from the configuration.
bool is_configured_by_defaults(std::string_view backend) {
  return std::ranges::any_of(built_in_defaults().options,
                             [&](const auto& option) { return backend_name_of(option.first) == backend; });
}

}  // namespace

void resolve_backends(configuration& config, const std::vector<known_backend>& backends,
                      const std::vector<skipped_plugin>& skipped_plugins) {
  std::set<std::string_view> allowed_names;
  for (const known_backend& backend : backends) allowed_names.insert(backend.name);
  for (const auto& [name, path] : config.plugins) allowed_names.insert(name);
  for (const selection_rule& rule : config.rules) {
    if (is_built_in(rule)) allowed_names.insert(rule.backend);
  }
  const std::vector<std::string_view> names(allowed_names.begin(), allowed_names.end());

  for (selection_rule& rule : config.rules) {
    check_with_source(rule.source, [&] {
      check_backend_name(rule.backend, names, skipped_plugins);
      const auto backend = std::find_if(backends.begin(), backends.end(),
                                        [&](const known_backend& item) { return item.name == rule.backend; });
      if (backend != backends.end()) rule.algorithm_index = find_algorithm(rule, *backend);
    });
  }
  for (const option_declaration& declaration : built_in_defaults().declared_options)
    if (!declaration.is_backend) allowed_names.insert(declaration.sections.begin(), declaration.sections.end());
  const std::vector<std::string_view> option_sections(allowed_names.begin(), allowed_names.end());
  for (const auto& [key, value] : config.options) {
    check_with_source(fmt::format("option {}", key), [&] {
      const std::string_view backend = backend_name_of(key);
      if (!is_configured_by_defaults(backend)) check_backend_name(backend, option_sections, skipped_plugins);
      check_option(backend, std::string_view(key).substr(key.rfind('.') + 1));
    });
  }
}

}  // namespace isthmus::selection
