// JSON representation of selection results, used by `isthmus explain`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "selection/selection.hpp"

namespace isthmus::selection {

// {"collective", "datatype", "platform", "memory", "ranks", "nodes", "bytes"}; bytes is null if only
// some ranks know it.
nlohmann::json to_json(const selection_query& query);

// {"backend", "algorithm", "rule", "source"}; algorithm is "" if the backend chooses the algorithm.
nlohmann::json to_json(const selection_rule& rule);

// The four fields of the winning rule (null if no backend supports the call) and {"query", "reason",
// "rejected": [...]}. Each rejected rule has its four fields, "reason", "is_relevant" (see is_relevant) and
// "unavailable": true if the rule matched but its backend does not support the call. "rejected" is empty unless
// select() was called with `trace`.
nlohmann::json to_json(const selection_query& query, const selection_decision& decision);

}  // namespace isthmus::selection
