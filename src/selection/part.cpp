#include <fmt/format.h>

#include "base/error.hpp"
#include "selection/grammar.hpp"
#include "selection/layer.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {
namespace {

rule strongest(const std::string& maker, const char* use) {
  rule made;
  made.source = fmt::format("options of backend {}", maker);
  try {
    set_field(made, "use", use);
    finish_rule(made);
  } catch (const grammar_error& what) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("{}: {}", made.source, what.message),
                     what.hint);
  }
  return made;
}

}  // namespace

configuration configuration_of_part(const configuration& whole, const std::string& maker, const char* use) {
  const auto names_maker = [&](const rule& each) { return each.backend == maker; };
  configuration part = whole;
  part.check = false;
  std::erase_if(part.rules, names_maker);
  if (part.rules.empty()) {
    part.rules = merge({built_in_defaults()}).rules;
    std::erase_if(part.rules, names_maker);
  }
  if (use != nullptr) part.rules.push_back(strongest(maker, use));
  return part;
}

}  // namespace isthmus::selection
