#include "frontends/nccl/pass_reasons.hpp"

#include <array>

namespace isthmus::nccl_shim {
namespace {

constexpr const char* reason_texts[reason_count] = {
    "no data",
    "invalid argument, to be reported by NCCL",
    "user-defined reduction (PreMulSum)",
    "per-call configuration (ncclAllReduceConfig etc.)",
    "selected by a rule",
    "not supported by any Isthmus backend",
    "point-to-point message",
    "communicator created by an unsupported call (ncclCommShrink, ncclCommGrow)",
    "communicator with one rank",
    "non-blocking communicator",
    "unique id without an Isthmus id (not seen, or no room)",
    "communicator not attached to Isthmus",
    "a rank failed or aborted",
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
