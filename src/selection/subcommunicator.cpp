#include <fmt/format.h>

#include "base/error.hpp"
#include "selection/grammar.hpp"
#include "selection/layer.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {
namespace {

selection_rule make_override_rule(const std::string& creator, const char* use) {
  selection_rule result;
  result.source = fmt::format("options of backend {}", creator);
  try {
    set_field(result, "use", use);
    finish_rule(result);
  } catch (const grammar_error& failure) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("{}: {}", result.source, failure.message),
                     failure.hint);
  }
  return result;
}

}  // namespace

configuration subcommunicator_configuration(const configuration& parent, const std::string& creator,
                                            const char* use) {
  const auto uses_creator = [&](const selection_rule& each) { return each.backend == creator; };
  configuration result = parent;
  result.check = false;
  std::erase_if(result.rules, uses_creator);
  if (result.rules.empty()) {
    result.rules = merge({built_in_defaults()}).rules;
    std::erase_if(result.rules, uses_creator);
  }
  if (use != nullptr) result.rules.push_back(make_override_rule(creator, use));
  return result;
}

}  // namespace isthmus::selection
