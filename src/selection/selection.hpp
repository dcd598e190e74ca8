// Selection of backend and algorithm: a pure function of the query, the rules and the capabilities of the
// backends. See docs/reference/configuration.md for the grammar and the order of rules.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::selection {

// Memory filter of a rule: any memory, or both buffers in the symmetric heap. A program uses heap buffers on
// either all ranks or none. All ranks therefore get the same result, and rules can depend on it.
enum class memory_kind { any, symmetric };

// All inputs of selection that describe the call. Equal on all ranks by construction.
struct selection_query {
  isthmus_collective collective;
  isthmus_datatype datatype;
  isthmus_platform platform;
  memory_kind memory;
  int ranks;
  int nodes;
  // Size in bytes as defined by nccl-tests (docs/internals/benchmarks.md). nullopt for collectives whose
  // counts only some ranks know (gatherv, scatterv, alltoallv). These collectives match only rules without
  // a byte range.
  std::optional<std::uint64_t> bytes;
  std::optional<isthmus_reduction_op> op = std::nullopt;  // nullopt for collectives without reduction
};

// A rule: filters, and the backend and algorithm to use if all filters match. Empty filters match everything.
struct selection_rule {
  std::string source;  // "default", "profile FILE:LINE", "config FILE:LINE", "environment NAME"
  std::string text;    // the rule in one line, as explain prints it
  std::vector<isthmus_collective> collectives;
  std::vector<isthmus_datatype> datatypes;
  std::vector<isthmus_reduction_op> ops;  // not empty: matches only collectives with reduction
  std::vector<isthmus_platform> platforms;
  memory_kind memory = memory_kind::any;
  int min_ranks = 1, max_ranks = std::numeric_limits<int>::max();
  int min_nodes = 1, max_nodes = std::numeric_limits<int>::max();
  std::uint64_t min_bytes = 0, end_bytes = std::numeric_limits<std::uint64_t>::max();  // half-open
  bool has_byte_range = false;
  std::string backend;
  std::string algorithm;     // "": the backend chooses
  int algorithm_index = -1;  // in the backend's algorithms, set by resolve_backends; -1: the backend chooses
};

inline bool is_built_in(const selection_rule& rule) { return rule.source.starts_with("default"); }

// Providers of plain device memory: the section [memory], see docs/guide/memory.md.
struct memory_settings {
  std::vector<std::string> providers;  // in the order in which they are tried
  std::string providers_source;        // the source that set them, in the format of selection_rule::source
  bool pool = true;
  std::uint64_t pool_max_block_bytes = 0;  // larger blocks do not come from a pool
  // Bytes of unused driver blocks that the pool of a device keeps. nullopt: depends on the memory size
  // of the device.
  std::optional<std::uint64_t> pool_keep_bytes;
};

// The profile that was read. `isthmus info`, `explain` and `doctor` compare the conditions with the current ones.
struct tuning_profile {
  std::string file;                                           // "" if no profile was read
  std::vector<std::pair<std::string, std::string>> measured;  // conditions of the measurement: name, value
};

// The merged configuration. Later rules take precedence over earlier ones.
struct configuration {
  std::vector<selection_rule> rules;
  std::vector<std::string> files;  // read, in order
  double timeout_s = 300;
  bool check = false;          // ranks compare their calls before they transfer data
  bool deterministic = false;  // floating-point reductions require backends that guarantee rank order
  // platform of a sycl::backend value, by name or number as text ("ext_oneapi_cuda", "4")
  std::vector<std::pair<std::string, isthmus_platform>> sycl_backends;
  std::vector<std::pair<std::string, std::string>> plugins;  // backend name, path
  std::vector<std::pair<std::string, std::string>> options;  // "backend.<name>.<key>", value
  // The backend whose rules and options apply to isthmus/tensor_parallel.h, regardless of the engine that
  // executes the calls.
  std::string tensor_parallel_backend;
  memory_settings memory;  // can differ between ranks
  tuning_profile profile;  // can differ between ranks

  // Returns a canonical text of all settings that affect selection, without their sources. Ranks compare
  // it at initialization.
  std::string canonical() const;
};

// Reads the defaults, the profile of the machine, the config file and the environment, in this order.
// `config_path` may be null. Throws error (CONFIG) with file:line:column and the allowed values.
configuration load_configuration(const char* config_path);

// Returns the configuration of subcommunicators that the backend `creator` creates for its own use. It contains
// the parent's rules, except for rules that name `creator`. If no rule is left (after ISTHMUS_BACKEND), the
// built-in rules are used. `use` ("backend" or "backend:algorithm", or NULL) is added as the rule with the
// highest precedence. `check` is off, because the parent has already compared the calls. Throws error (CONFIG).
configuration subcommunicator_configuration(const configuration& parent, const std::string& creator,
                                            const char* use);

// A registered backend and the algorithm names that a rule can append as "backend:algorithm".
struct known_backend {
  std::string name;
  std::vector<std::string> algorithms;
};

// A plug-in that was found but not loaded, or folders that could not be searched.
struct skipped_plugin {
  std::string file_stem;  // "libmailbox"; "": any plug-in may be meant
  std::string reason;     // names the file
};

// Sets the algorithm index of each rule whose backend is known. Throws error (CONFIG) with the source and the
// closest name
//   - for a rule or an option of a backend that is not known, not a configured plug-in and not named by the
//     built-in defaults (these name backends that a build may lack),
//   - for an algorithm that a known backend does not have.
// The error for an unknown backend contains the reason if a plug-in with that name was skipped.
// Call it after the backends have been registered. Otherwise, a misspelled name would be treated as
// an unavailable backend.
void resolve_backends(configuration& config, const std::vector<known_backend>& backends,
                      const std::vector<skipped_plugin>& skipped_plugins = {});

// Returns nullptr if the backend of the rule exists on all ranks and supports the operation with the rule's
// algorithm. Otherwise returns the reason why it cannot run the operation.
using availability = std::function<const char*(const selection_rule& rule)>;

struct rule_rejection {
  const selection_rule* candidate;
  std::string reason;
  std::string_view mismatch;    // name of the first filter that does not match; "": all match
  bool is_unavailable = false;  // the rule matched, but its backend does not support the call
  // The user may want to act on it: the rule is not built in and is for this collective and platform (and in a
  // profile, for this number of ranks), its backend is unavailable, or it is the built-in rule that applies next.
  bool is_relevant = false;
};

struct selection_decision {
  const selection_rule* winner = nullptr;  // nullptr: no backend supports the call
  std::string reason;                      // one line: rule, source
  std::vector<rule_rejection> rejections;  // filled only if `trace` is set, later rules first
};

// Returns true if the rule can match any call of such a communicator.
bool is_relevant(const selection_rule& rule, isthmus_platform platform, int ranks, int nodes);

// Checks the rules from last to first and returns the first rule that matches and whose backend is available.
selection_decision select(const configuration& config, const selection_query& query,
                          const availability& find_obstacle, bool trace);

// JSON of the decision for `isthmus explain`: the winning rule's "backend", "algorithm" ("" if the backend chooses
// it), "rule" and "source" (null if no backend supports the call), and "query", "reason" and "rejected". Each
// rejected rule has the same four members and those of rule_rejection: "reason", "mismatch" (null if all filters
// match), "unavailable" and "is_relevant". "rejected" is empty unless select() was called with `trace`. In the query,
// "bytes" is null if only some ranks know it.
nlohmann::json to_json(const selection_query& query, const selection_decision& decision);

}  // namespace isthmus::selection
