// Helpers to create flight recorders for ranks that exist only in a test.
#pragma once

#include <unistd.h>

#include <random>

#include "recorder/flight_recorder.hpp"

namespace isthmus::recorder {

inline membership ranks_of_this_process(int size) {
  membership ranks;
  ranks.size = ranks.node_size = ranks.process_size = size;
  ranks.node_of.assign(static_cast<std::size_t>(size), 0);
  ranks.process_of = ranks.node_of;
  ranks.pid_of.assign(static_cast<std::size_t>(size), ::getpid());
  std::random_device random;
  for (auto& word : ranks.token) word = std::uint64_t{random()} << 32 | random();
  return ranks;
}

inline isthmus_operation allreduce_of(std::uint64_t count) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = count;
  return operation;
}

inline void record_call(flight_recorder& recorder, std::uint64_t count) {
  const isthmus_operation operation = allreduce_of(count);
  recorder.begin(0, &operation, nullptr, 1);
  recorder.end(true);
}

}  // namespace isthmus::recorder
