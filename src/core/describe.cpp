// JSON descriptions of a communicator and its selection: info, explain and path.
#include <isthmus/isthmus.h>

#include <nlohmann/json.hpp>

#include "core/communicator.hpp"
#include "selection/profile.hpp"

namespace isthmus {
namespace {

using json = nlohmann::json;

json capability_names(std::uint32_t capabilities) {
  json names = json::array();
  if (capabilities & ISTHMUS_BACKEND_BLOCKING) names.push_back("blocking");
  if (capabilities & ISTHMUS_BACKEND_BLOCKING_ON_HOST) names.push_back("blocking_on_host");
  if (capabilities & ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS) names.push_back("one_rank_per_process");
  if (capabilities & ISTHMUS_BACKEND_GRAPH_CAPTURE) names.push_back("graph_capture");
  if (capabilities & ISTHMUS_BACKEND_MULTI_NODE) names.push_back("multi_node");
  if (capabilities & ISTHMUS_BACKEND_LAST_RESORT) names.push_back("last_resort");
  if (capabilities & ISTHMUS_BACKEND_RANK_ORDER) names.push_back("rank_order");
  if (capabilities & ISTHMUS_BACKEND_EVERY_OPERATION) names.push_back("every_operation");
  if (capabilities & ISTHMUS_BACKEND_BUFFERED_SENDS) names.push_back("buffered_sends");
  if (capabilities & ISTHMUS_BACKEND_ROUNDS_ONCE) names.push_back("rounds_once");
  if (capabilities & ISTHMUS_BACKEND_RMSNORM) names.push_back("rmsnorm");
  if (capabilities & ISTHMUS_BACKEND_PRODUCT) names.push_back("product");
  return names;
}

const char* state_name(backend_state state) {
  switch (state) {
    case backend_state::available: return "available";
    case backend_state::not_used: return "not_used";
    case backend_state::other_platform: return "other_platform";
    case backend_state::unavailable: break;
  }
  return "unavailable";
}

json describe_backend(const backend_instance& backend, bool has_functions) {
  json result = {{"name", backend.name()},
                 {"source", backend.source()},
                 {"state", state_name(backend.state())},
                 {"reason", backend.reason()},
                 {"version", backend.version()},
                 {"capabilities", capability_names(backend.capabilities())},
                 {"description", ""},
                 {"algorithms", json::array()},
                 {"notes", backend.notes()}};
  if (!has_functions) return result;
  const isthmus_backend& functions = backend.functions();
  if (functions.description != nullptr) result["description"] = functions.description;
  for (const char* const* name = functions.algorithms; name != nullptr && *name != nullptr; ++name)
    result["algorithms"].push_back(*name);
  return result;
}

json describe_profile(const selection::tuning_profile& profile) {
  json conditions = json::object();
  for (const auto& [name, value] : profile.measured) conditions[name] = value;
  return {{"file", profile.file}, {"measured", conditions}};
}

}  // namespace

json communicator::info() {
  json backends = json::array();
  for (const auto& backend : m_backends) backends.push_back(describe_backend(*backend, backend->is_present()));
  json rules = json::array();
  for (const auto& rule : m_setup.rules->rules) rules.push_back({{"rule", rule.text}, {"source", rule.source}});
  const auto current_failure = failure();
  const selection::machine_description machine = selection::detect_machine();
  return {{"version", isthmus_version()},
          {"rank", m_ranks.rank},
          {"size", m_ranks.size},
          {"local_size", m_ranks.process_size},
          {"nodes", m_ranks.nodes},
          {"node_of", m_ranks.node_of},
          {"process_of", m_ranks.process_of},
          {"pid_of", m_ranks.pid_of},
          {"device",
           {{"platform", isthmus_platform_name(m_ranks.device.platform)}, {"ordinal", m_ranks.device.ordinal}}},
          {"bootstrap", m_control->name()},
          {"timeout_s", timeout_s()},
          {"state", current_failure ? json(current_failure->message) : json("ok")},
          {"backends", backends},
          {"rules", rules},
          {"config_files", m_setup.rules->files},
          {"machine", {{"cpu", machine.cpu_model}, {"cores", machine.cores}, {"gpus", machine.gpus}}},
          {"profile_path", selection::profile_path(machine)},
          {"profile", describe_profile(m_setup.rules->profile)},
          {"heap", {{"blocks", m_heap.blocks()}, {"bytes", m_heap.bytes()}}}};
}

void communicator::check_shape(const isthmus_operation& operation) const {
  validation_scope scope = m_scope;
  scope.is_grouped = true;
  try {
    validate_shape(operation, scope);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
}

json communicator::explain(const isthmus_operation& operation) {
  check_shape(operation);
  return m_dispatcher.explain(operation);
}

std::string communicator::path(const isthmus_operation& operation) const {
  check_shape(operation);
  return m_dispatcher.path(operation);
}

}  // namespace isthmus
