#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/error.hpp"
#include "selection/defaults.hpp"
#include "selection/layer.hpp"
#include "selection/names.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {
namespace {

// Runs a check and puts `source` in front of what it finds.
template <typename Function>
void checked(const std::string& source, Function&& check) {
  try {
    check();
  } catch (const grammar_error& what) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("{}: {}", source, what.message),
                     what.hint);
  }
}

void check_algorithm(const rule& rule, const known_backend& backend) {
  if (rule.algorithm.empty()) return;
  const std::vector<std::string_view> names(backend.algorithms.begin(), backend.algorithms.end());
  if (names.empty())
    throw grammar_error{fmt::format("backend {} has no algorithms to choose from, the rule wants \"{}\"",
                                    backend.name, rule.algorithm),
                        fmt::format("write use = \"{}\"", backend.name)};
  parse_name(fmt::format("algorithm of backend {}", backend.name), names, rule.algorithm);
}

// "host" of "backend.host.spin_us".
std::string_view backend_of_option(std::string_view key) {
  const auto first = key.find('.') + 1;
  return key.substr(first, key.find('.', first) - first);
}

// The backends whose options the built-in defaults set; like those of its rules, a build may lack them. Read
// from the defaults themselves, because a forced backend leaves none of their rules in the configuration.
const std::set<std::string, std::less<>>& configured_by_defaults() {
  static const auto names = [] {
    std::set<std::string, std::less<>> found;
    for (const auto& [key, value] : read_toml(default_configuration, "defaults.toml", "default").options)
      found.emplace(backend_of_option(key));
    return found;
  }();
  return names;
}

}  // namespace

void check_backends(const configuration& configuration, const std::vector<known_backend>& known) {
  std::set<std::string_view> allowed;
  for (const known_backend& backend : known) allowed.insert(backend.name);
  for (const auto& [name, path] : configuration.plugins) allowed.insert(name);
  const auto is_default = [](const rule& rule) { return rule.source.starts_with("default"); };
  for (const rule& rule : configuration.rules) {
    if (is_default(rule)) allowed.insert(rule.backend);
  }
  const std::vector<std::string_view> names(allowed.begin(), allowed.end());

  for (const rule& rule : configuration.rules) {
    checked(rule.source, [&] {
      // The threshold's shorthand names it whether or not it is there: a missing side gives way to the other.
      if (rule.backend != "hybrid") parse_name("backend", names, rule.backend);
      const auto backend = std::find_if(known.begin(), known.end(),
                                        [&](const known_backend& item) { return item.name == rule.backend; });
      if (backend != known.end()) check_algorithm(rule, *backend);
    });
  }
  allowed.insert("fused");  // no backend, but [backend.fused] is where the products of fused.h are configured
  const std::vector<std::string_view> with_options(allowed.begin(), allowed.end());
  for (const auto& [key, value] : configuration.options) {
    if (configured_by_defaults().contains(backend_of_option(key))) continue;
    checked(fmt::format("option {}", key),
            [&] { parse_name("backend", with_options, backend_of_option(key)); });
  }
}

}  // namespace isthmus::selection
