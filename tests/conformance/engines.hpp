// What there is to test: found in the description that a communicator gives of itself.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rank_runner.hpp"

namespace conformance {

struct engine_spec {
  std::string name;  // "default", "host", "shm:ring"
  bool is_default = true;
  bool is_algorithm = false;
  bool steps_in_type = false;             // rounds 16-bit and 8-bit types at every step instead of once
  std::vector<std::uint64_t> boundaries;  // bytes at which rules change
};

// Collective. The default selection first, then every available backend, external plug-ins included, and each
// algorithm of it; not the backend `except`. `missing` gets the names and reasons of those that are not
// available.
std::vector<engine_spec> find_engines(rank_runner& runner, double timeout_s, const std::string& except, std::string& missing);

// Whether the operation would go by that engine.
bool uses_engine(isthmus_communicator communicator, const isthmus_operation& operation, const engine_spec& engine);

// A configuration file that forces an engine, for as long as the object lives.
class config_file {
 public:
  explicit config_file(const engine_spec& engine);
  explicit config_file(const std::vector<std::string>& used);  // rules for all of them
  ~config_file();
  config_file(const config_file&) = delete;
  config_file& operator=(const config_file&) = delete;
  const char* path() const { return m_path.c_str(); }

 private:
  std::string m_path;
};

}  // namespace conformance
