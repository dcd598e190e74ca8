// Fuzz target for profiles: the text of every rule that can be read is a valid ISTHMUS_RULE with the same meaning.
#include <cstdlib>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "selection/layer.hpp"

using namespace isthmus::selection;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  config_layer profile;
  try {
    profile = read_toml(fuzz::text_of(data, size), "/fuzz/profile.toml", "profile");
  } catch (const isthmus::error&) {
    return 0;
  }
  for (const selection_rule& rule : profile.rules) {
    setenv("ISTHMUS_RULE", rule.text.c_str(), 1);
    const config_layer again = read_environment();
    fuzz::require(again.rules.size() == 1 && again.rules[0].text == rule.text,
                  "a rule that reads back differently");
  }
  return 0;
}
