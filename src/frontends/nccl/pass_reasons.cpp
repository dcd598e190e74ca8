#include "frontends/nccl/pass_reasons.hpp"

#include <array>

namespace isthmus::nccl_shim {
namespace {

constexpr const char* reason_texts[reason_count] = {
    "nothing to move",
    "an argument that NCCL is to check",
    "an operation of the program's own (PreMulSum)",
    "a configuration of the call's own (ncclAllReduceConfig and the like)",
    "a rule gives it to NCCL",
    "no backend of Isthmus does it",
    "a message between two ranks",
    "a communicator that another call made (ncclCommShrink, ncclCommGrow)",
    "a communicator of one rank",
    "a communicator whose calls do not block",
    "a unique id that Isthmus did not see, or in which it had no room",
    "a communicator that Isthmus could not attach to",
    "a rank was lost, or gave up",
};

constexpr auto call_names = [] {
  std::array<const char*, ISTHMUS_COLLECTIVE_COUNT> names{};
#define NCCL_COLLECTIVE(NAME, Function, shape) names[ISTHMUS_##NAME] = "nccl" #Function;
#include "frontends/nccl/collectives.def"
  return names;
}();

constexpr preload::statistics_labels labels = {
    "nccl",       "NCCL",      "ISTHMUS_NCCL_REPORT", call_names.data(), ISTHMUS_COLLECTIVE_COUNT,
    reason_texts, reason_count};

}  // namespace

preload::call_statistics& statistics() {
  static auto* const instance = new preload::call_statistics(labels);
  return *instance;
}

const char* reason_text(pass_reason_code reason) { return reason_texts[static_cast<int>(reason)]; }

}  // namespace isthmus::nccl_shim
