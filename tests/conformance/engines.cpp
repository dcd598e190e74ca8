#include "engines.hpp"

#include <fmt/format.h>
#include <isthmus/tools.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace conformance {
namespace {

using nlohmann::json;

json info_of(isthmus_communicator communicator) {
  std::size_t required_bytes = 0;
  isthmus_communicator_info(communicator, nullptr, 0, &required_bytes);
  std::string text(required_bytes, '\0');
  if (isthmus_communicator_info(communicator, text.data(), text.size(), &required_bytes) != ISTHMUS_SUCCESS)
    throw std::runtime_error(describe_last_error());
  return json::parse(text.c_str());
}

// The isthmus_communicator_info of a communicator with this configuration.
json info_for_config(rank_runner& runner, double timeout_s, const char* config) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = timeout_s;
  options.config_path = config;
  const std::vector<rank_member> members = runner.create(options);
  json info = info_of(members.front().communicator);
  for (const rank_member& member : members) isthmus_communicator_destroy(member.communicator);
  return info;
}

std::uint64_t size_of(const std::string& text) {
  std::size_t length = 0;
  std::uint64_t value = std::stoull(text, &length);
  switch (length < text.size() ? text[length] : ' ') {
    case 'K': return value << 10;
    case 'M': return value << 20;
    case 'G': return value << 30;
    default: return value;
  }
}

// The ends of the byte ranges in the rules' text ("bytes=4K..1M").
std::vector<std::uint64_t> boundaries_of(const json& info) {
  std::set<std::uint64_t> boundaries;
  for (const json& rule : info.at("rules")) {
    std::istringstream words(rule.at("rule").get<std::string>());
    for (std::string word; words >> word;) {
      const std::size_t dots = word.find("..");
      if (!word.starts_with("bytes=") || dots == std::string::npos) continue;
      for (const std::string& end : {word.substr(6, dots - 6), word.substr(dots + 2)})
        if (!end.empty()) boundaries.insert(size_of(end));
    }
  }
  boundaries.erase(0);
  return {boundaries.begin(), boundaries.end()};
}

// The path of an explanation, as isthmus_communicator_path writes it.
std::string explained_path(isthmus_communicator communicator, const isthmus_operation& operation) {
  char text[1 << 16];
  if (isthmus_communicator_explain(communicator, &operation, text, sizeof text, nullptr) != ISTHMUS_SUCCESS)
    throw std::runtime_error(describe_last_error());
  const json explanation = json::parse(text);
  const auto text_of = [&](const char* name) {
    return explanation.at(name).is_null() ? "" : explanation.at(name).get<std::string>();
  };
  return text_of("backend") + (text_of("algorithm").empty() ? "" : ":" + text_of("algorithm"));
}

}  // namespace

std::vector<engine_spec> find_engines(rank_runner& runner, double timeout_s, const std::string& except,
                                      std::string& missing_engines) {
  json info = info_for_config(runner, timeout_s, nullptr);
  const auto boundaries = boundaries_of(info);
  // Backends that no default rule names (external plug-ins) are created only if some rule names them.
  std::vector<std::string> unnamed;
  for (const json& backend : info.at("backends"))
    if (backend.at("state") == "not_used" && backend.at("name") != except)
      unnamed.push_back(backend.at("name"));
  if (!unnamed.empty()) info = info_for_config(runner, timeout_s, config_file(unnamed).path());

  engine_spec base;
  base.name = "default";
  base.boundaries = boundaries;
  std::vector<engine_spec> engines{base};
  base.is_default = false;
  for (const json& backend : info.at("backends")) {
    if (backend.at("name") == except) continue;
    if (backend.at("state") != "available") {
      missing_engines += fmt::format("; {}: {}", backend.at("name").get<std::string>(),
                                     backend.at("reason").get<std::string>());
      continue;
    }
    base.name = backend.at("name");
    base.is_algorithm = false;
    // MPI applies the operation to pairs of elements of the datatype, so it rounds at every step.
    base.steps_in_type = base.name == "mpi";
    engines.push_back(base);
    for (const json& algorithm : backend.at("algorithms")) {
      engine_spec algorithm_engine = base;
      algorithm_engine.name = fmt::format("{}:{}", base.name, algorithm.get<std::string>());
      algorithm_engine.is_algorithm = true;
      engines.push_back(algorithm_engine);
    }
  }
  return engines;
}

bool uses_engine(isthmus_communicator communicator, const isthmus_operation& operation,
                 const engine_spec& engine, bool compares_explanation) {
  char text[256];
  if (isthmus_communicator_path(communicator, &operation, text, sizeof text) != ISTHMUS_SUCCESS)
    throw std::runtime_error(describe_last_error());
  const std::string path = text;
  if (compares_explanation && explained_path(communicator, operation) != path)
    throw std::runtime_error(
        fmt::format("the path {} is not the explained one, {}", path, explained_path(communicator, operation)));
  return engine.name == (engine.is_algorithm ? path : path.substr(0, path.find(':')));
}

config_file::config_file(const engine_spec& engine)
    : config_file(engine.is_default ? std::vector<std::string>{} : std::vector{engine.name}) {}

config_file::config_file(const std::vector<std::string>& rule_names) {
  static std::atomic<int> number{0};
  m_path = fmt::format("{}/isthmus-conformance-{}-{}.toml", P_tmpdir, getpid(), number++);
  std::ofstream file(m_path);
  for (const std::string& name : rule_names) file << fmt::format("[[rule]]\nuse = \"{}\"\n", name);
  if (!file) throw std::runtime_error("cannot write " + m_path);
}

config_file::~config_file() { std::remove(m_path.c_str()); }

}  // namespace conformance
