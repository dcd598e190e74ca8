// The engines to test: backends and their algorithms, as listed by isthmus_communicator_info.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rank_runner.hpp"

namespace conformance {

struct engine_spec {
  std::string name;  // "default", "shm", "shm:ring"
  bool is_default = true;
  bool is_algorithm = false;
  bool steps_in_type = false;             // rounds 16-bit and 8-bit types at every step, not once
  std::vector<std::uint64_t> boundaries;  // byte counts at which rules change
};

// Collective. Returns the default selection, then every available backend (external plug-ins included)
// with each of its algorithms, without the backend `except`. Appends the names of unavailable backends and
// their reasons to `missing`.
std::vector<engine_spec> find_engines(rank_runner& runner, double timeout_s, const std::string& except,
                                      std::string& missing_engines);

// True if the operation would use the engine. Explanations take most of the time of small cases, so only some calls
// check that the explanation names the same path.
bool uses_engine(isthmus_communicator communicator, const isthmus_operation& operation,
                 const engine_spec& engine, bool compares_explanation);

// A configuration file that forces an engine. The destructor removes the file.
class config_file {
 public:
  explicit config_file(const engine_spec& engine);
  explicit config_file(const std::vector<std::string>& rule_names);  // one rule per name
  ~config_file();
  config_file(const config_file&) = delete;
  config_file& operator=(const config_file&) = delete;
  const char* path() const { return m_path.c_str(); }

 private:
  std::string m_path;
};

}  // namespace conformance
