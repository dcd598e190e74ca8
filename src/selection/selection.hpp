// Selection: a pure function from (what is asked, rules, what the backends can do) to (backend,
// algorithm, reason). Rules are data; see docs/selection.md for their grammar and order.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::selection {

// What a rule may ask about memory: any, or both buffers in the symmetric heap (equal on all ranks by the
// heap's own contract, so a rule may rely on it).
enum class memory_kind { any, symmetric };

// Everything selection may depend on; equal on all ranks by construction.
struct selection_query {
  isthmus_collective collective;
  isthmus_datatype datatype;
  isthmus_platform platform;
  memory_kind memory;
  int ranks;
  int nodes;
  // Bytes of the buffer that nccl-tests calls size (docs/benchmarks.md); none for collectives whose counts only
  // some ranks know (gatherv, scatterv, alltoallv), which only match rules without a byte range.
  std::optional<std::uint64_t> bytes;
};

// One rule: filters that must all match, and what to use then. Empty filters match everything.
struct selection_rule {
  std::string source;  // "default", "profile FILE:LINE", "config FILE:LINE", "environment NAME"
  std::string text;    // the rule in one line, as explain prints it
  std::vector<isthmus_collective> collectives;
  std::vector<isthmus_datatype> datatypes;
  std::vector<isthmus_platform> platforms;
  memory_kind memory = memory_kind::any;
  int min_ranks = 1, max_ranks = std::numeric_limits<int>::max();
  int min_nodes = 1, max_nodes = std::numeric_limits<int>::max();
  std::uint64_t min_bytes = 0, end_bytes = std::numeric_limits<std::uint64_t>::max();  // half-open
  bool has_byte_range = false;
  std::string backend;
  std::string algorithm;  // "": the backend's only or own choice
};

inline bool is_built_in(const selection_rule& rule) { return rule.source.starts_with("default"); }

// Where plain memory of a device comes from: the key [memory], docs/memory.md.
struct memory_settings {
  std::vector<std::string> providers;  // in the order of trial; what is not in it is not tried
  std::string providers_source;        // what had the last word about them, spelled as rule::source
  bool pool = true;
  std::uint64_t pool_max_bytes = 0;  // larger blocks are never parts of a pool
  // What the pool of one device keeps of the driver's blocks when unused; nothing: by the device's memory.
  std::optional<std::uint64_t> pool_keep_bytes;
};

// Everything that was configured. Rules are ordered: a later one wins over an earlier one.
struct configuration {
  std::vector<selection_rule> rules;
  std::vector<std::string> files;  // read, in order
  double timeout_s = 300;
  bool check = false;          // ranks compare their calls before data moves
  bool deterministic = false;  // floating-point reductions only by backends that promise the order of the ranks
  // platform of a sycl::backend value, by name or number as text ("ext_oneapi_cuda", "4")
  std::vector<std::pair<std::string, isthmus_platform>> sycl_backends;
  std::vector<std::pair<std::string, std::string>> plugins;  // backend name, path
  std::vector<std::pair<std::string, std::string>> options;  // "backend.<name>.<key>", value
  // The backend whose rules and options isthmus/tensor_parallel.h follows, whichever engine serves it.
  std::string tensor_parallel_backend;
  memory_settings memory;  // ranks may differ

  // Order- and source-independent text of what decides selection. Ranks compare it at init.
  std::string canonical() const;
};

// Reads defaults, the machine's profile, the config file and the environment, in this order.
// `config_path` may be null. Throws error (CONFIG) with file:line:column and the allowed values.
configuration load_configuration(const char* config_path);

// For the communicators that the backend `creator` makes for its own use: the same, without the rules that name
// it, and with `use`, "backend" or "backend:algorithm" (NULL: nothing), as the strongest. Where no rule is
// left, as after ISTHMUS_BACKEND, the built-in ones are taken. Calls were compared already, so `check` is off.
// Throws error (CONFIG).
configuration subcommunicator_configuration(const configuration& parent, const std::string& creator, const char* use);

// A backend that the runtime has, with the names that a rule may put behind "backend:".
struct known_backend {
  std::string name;
  std::vector<std::string> algorithms;
};

// Throws error (CONFIG), with the source and the nearest name, for a rule or an option of a backend that is
// neither known, nor a configured plug-in, nor named by the built-in defaults (which name backends that a
// build may lack), and for an algorithm that a known backend lacks. Called once backends are registered,
// because a name that is only misspelled would otherwise count as a backend that is not available.
void check_backends(const configuration& config, const std::vector<known_backend>& known);

// nullptr when the backend exists on all ranks and supports the operation; else the reason.
using availability = std::function<const char*(const std::string& backend, const std::string& algorithm)>;

struct rule_rejection {
  const selection_rule* candidate;
  std::string reason;
  bool is_unavailable = false;  // the rule matched, but its backend cannot take the call
};

struct selection_decision {
  const selection_rule* winner = nullptr;       // nullptr: nothing can do it
  std::string reason;                 // one line: rule, source
  std::vector<rule_rejection> rejections;  // filled only when `trace` is set, later rules first
};

// Whether the rule is about calls of this collective on this platform at all: most default rules are not,
// and a reader who asks for one call wants to see those that are.
bool is_relevant(const selection_rule& rule, const selection_query& query);
// Whether it may match any call of such a communicator.
bool is_relevant(const selection_rule& rule, isthmus_platform platform, int ranks, int nodes);

// Walks the rules from the last to the first and takes the first that matches and is available.
selection_decision select(const configuration& config, const selection_query& query, const availability& find_obstacle,
                bool trace);

}  // namespace isthmus::selection
