// The selection of Isthmus for a call.
#pragma once

#include <isthmus/tools.h>

#include <isthmus/error.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace bench {

inline nlohmann::json explain(isthmus_communicator communicator, const isthmus_operation& operation) {
  std::size_t bytes = 0;
  isthmus::detail::check(isthmus_communicator_explain(communicator, &operation, nullptr, 0, &bytes));
  std::string text(bytes, '\0');
  isthmus::detail::check(isthmus_communicator_explain(communicator, &operation, text.data(), bytes, nullptr));
  return nlohmann::json::parse(text.c_str());
}

inline std::string selected_backend(isthmus_communicator communicator, const isthmus_operation& operation) {
  return explain(communicator, operation).at("backend").get<std::string>();
}

}  // namespace bench
