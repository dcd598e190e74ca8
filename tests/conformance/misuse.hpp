// Helpers for tests of invalid input.
#pragma once

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <functional>
#include <string>
#include <vector>

#include "topology/threads.hpp"

namespace misuse_test {

inline isthmus_communicator_options make_options(double timeout_s, const char* config = nullptr) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = config;
  options.timeout_s = timeout_s;
  return options;
}

inline std::string last_message() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return fmt::format("{} [{}]", info.message, info.hint);
}

// Result of one rank.
struct outcome {
  isthmus_status status;
  std::string message;
};

// Runs `work(rank)` in a thread for each rank.
inline std::vector<outcome> run_on_ranks(int size, const std::function<isthmus_status(int)>& work) {
  std::vector<outcome> outcomes(static_cast<std::size_t>(size));
  topology::run_on_each_rank(size, [&](int rank) {
    const isthmus_status status = work(rank);
    outcomes[rank] = {status, status == ISTHMUS_SUCCESS ? "" : last_message()};
  });
  return outcomes;
}

}  // namespace misuse_test
