#include "selection/explain.hpp"

#include <nlohmann/json.hpp>

#include "selection/names.hpp"

namespace isthmus::selection {

nlohmann::json to_json(const selection_query& query) {
  nlohmann::json json = {{"collective", collective_names()[query.collective]},
                         {"datatype", datatype_names()[query.datatype]},
                         {"platform", platform_names()[query.platform]},
                         {"memory", query.memory == memory_kind::symmetric ? "symmetric" : "any"},
                         {"ranks", query.ranks},
                         {"nodes", query.nodes},
                         {"bytes", nullptr}};
  if (query.bytes) json["bytes"] = *query.bytes;
  return json;
}

nlohmann::json to_json(const selection_rule& rule) {
  return {
      {"backend", rule.backend}, {"algorithm", rule.algorithm}, {"rule", rule.text}, {"source", rule.source}};
}

nlohmann::json to_json(const selection_query& query, const selection_decision& decision) {
  nlohmann::json json = {{"backend", nullptr}, {"algorithm", nullptr}, {"rule", nullptr}, {"source", nullptr}};
  if (decision.winner != nullptr) json = to_json(*decision.winner);
  json["query"] = to_json(query);
  json["reason"] = decision.reason;
  json["rejected"] = nlohmann::json::array();
  for (const rule_rejection& rejection : decision.rejections) {
    nlohmann::json entry = to_json(*rejection.candidate);
    entry["reason"] = rejection.reason;
    entry["unavailable"] = rejection.is_unavailable;
    entry["is_relevant"] = is_relevant(*rejection.candidate, query);
    json["rejected"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace isthmus::selection
