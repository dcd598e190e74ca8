// Fuzz target for configuration files: reads them, merges them over the defaults, and selects for some calls.
#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "selection/layer.hpp"

namespace {

using namespace isthmus::selection;

void query(const configuration& merged) {
  const auto supports_all = [](const selection_rule&) -> const char* { return nullptr; };
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{4096}, ~std::uint64_t{0}}) {
    const selection_query call{
        ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_HOST, memory_kind::any, 4, 1, bytes};
    select(merged, call, supports_all, true);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const configuration merged =
        merge({built_in_defaults(), read_toml(fuzz::text_of(data, size), "/fuzz/isthmus.toml", "config")});
    fuzz::require(!merged.canonical().empty(), "a configuration without a text");
    fuzz::require(merged.timeout_s > 0, "a timeout that is not positive");
    query(merged);
  } catch (const isthmus::error& failure) {
    fuzz::require(failure.what()[0] != '\0', "an error without a message");
  }
  return 0;
}
