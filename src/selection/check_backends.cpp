#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "selection/layer.hpp"
#include "selection/names.hpp"
#include "selection/options.hpp"
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

void check_option(std::string_view backend, std::string_view option) {
  const auto names = options_of(backend);
  if (!names || is_option(*names, option)) return;
  if (names->empty()) throw grammar_error{fmt::format("backend {} has no options", backend), "leave it out"};
  throw unknown_name(fmt::format("option of backend {}", backend), *names, option);
}

// The backends whose options the built-in defaults set; like those of its rules, a build may lack them. Read
// from the defaults themselves, because a forced backend leaves none of their rules in the configuration.
bool configured_by_defaults(std::string_view backend) {
  return std::ranges::any_of(built_in_defaults().options,
                             [&](const auto& option) { return backend_of_option(option.first) == backend; });
}

// The threshold's shorthand names them whether or not they are there: a missing side gives way to the other.
bool stands_for_mpi(const std::string& backend) {
  return std::ranges::any_of(built_in_defaults().mpi_backends,
                             [&](const auto& entry) { return entry.second == backend; });
}

}  // namespace

void check_backends(const configuration& configuration, const std::vector<known_backend>& known) {
  std::set<std::string_view> allowed;
  for (const known_backend& backend : known) allowed.insert(backend.name);
  for (const auto& [name, path] : configuration.plugins) allowed.insert(name);
  for (const rule& rule : configuration.rules) {
    if (is_built_in(rule)) allowed.insert(rule.backend);
  }
  const std::vector<std::string_view> names(allowed.begin(), allowed.end());

  for (const rule& rule : configuration.rules) {
    checked(rule.source, [&] {
      if (!stands_for_mpi(rule.backend)) parse_name("backend", names, rule.backend);
      const auto backend = std::find_if(known.begin(), known.end(),
                                        [&](const known_backend& item) { return item.name == rule.backend; });
      if (backend != known.end()) check_algorithm(rule, *backend);
    });
  }
  for (const option_declaration& declared : built_in_defaults().declared_options)
    if (!declared.is_backend) allowed.insert(declared.of.begin(), declared.of.end());
  const std::vector<std::string_view> with_options(allowed.begin(), allowed.end());
  for (const auto& [key, value] : configuration.options) {
    checked(fmt::format("option {}", key), [&] {
      const std::string_view backend = backend_of_option(key);
      if (!configured_by_defaults(backend)) parse_name("backend", with_options, backend);
      check_option(backend, std::string_view(key).substr(key.rfind('.') + 1));
    });
  }
}

}  // namespace isthmus::selection
