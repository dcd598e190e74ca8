// A test case: one collective that every rank runs on random data and compares with its definition.
#pragma once

#include <random>

#include "rank_runner.hpp"

namespace shm_test {

enum class memory { separate, heap, mixed };  // mixed: only even ranks use the heap

struct collective_case {
  isthmus_collective collective = ISTHMUS_ALLREDUCE;
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  isthmus_reduction_op op = ISTHMUS_SUM;
  std::uint64_t count = 1;
  int root = 0;
  bool in_place = false;
  memory placement = memory::separate;
  const char* algorithm = nullptr;
  std::uint64_t seed = 0;

  std::string describe() const;
};

// Random bits. The streams of a seed differ.
std::vector<std::byte> random_bytes(std::uint64_t seed, int stream, std::uint64_t length);

// Throws if the result is wrong. Returns false without running if the backend does not support the case.
bool run_case(rank& self, const collective_case& test_case);

}  // namespace shm_test
