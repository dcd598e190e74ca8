// Selection in words: the JSON behind `isthmus explain`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "selection/selection.hpp"

namespace isthmus::selection {

// {"collective", "datatype", "platform", "memory", "ranks", "nodes", "bytes"}; bytes is null when only
// some ranks know it.
nlohmann::json to_json(const selection_query& query);

// {"backend", "algorithm", "rule", "source"}; algorithm is "" when the backend chooses.
nlohmann::json to_json(const selection_rule& rule);

// The winner's four fields (null when nothing can do it) and {"query", "reason", "rejected": [...]}. Each
// rejected rule has its four fields, "reason" and "unavailable": true when it matched the call, but its
// backend cannot take it. Ask select() for a trace, else "rejected" is empty.
nlohmann::json to_json(const selection_query& query, const selection_decision& decision);

}  // namespace isthmus::selection
