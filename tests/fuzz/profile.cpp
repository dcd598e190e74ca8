// Fuzz target for profiles: rules that can be read must survive writing and reading a profile.
#include "selection/profile.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "selection/layer.hpp"

namespace {

using namespace isthmus::selection;

std::string text_of(const std::vector<selection_rule>& rules) {
  std::string text;
  for (const selection_rule& each : rules) text += each.text + "\n";
  return text;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  config_layer first;
  try {
    first = read_toml(fuzz::text_of(data, size), "/fuzz/profile.toml", "profile");
  } catch (const isthmus::error&) {
    return 0;
  }
  const config_layer second =
      read_toml(write_profile(first.rules, "# by\nthe fuzzer"), "/fuzz/again.toml", "profile");
  fuzz::require(text_of(first.rules) == text_of(second.rules), "a profile that reads back differently");
  return 0;
}
