// Test procedures for both kinds of products. A RankRun holds one rank's plan and buffers for a Shape and
// provides fill(seed), run(), check() and c().
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "test_ranks.hpp"

namespace fused_test {

// Runs twice, with different numbers.
template <typename RankRun, typename Shape>
void run_twice(const Shape& test_shape) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    RankRun run(self, test_shape);
    for (const std::uint64_t each : {seed, seed + 7}) {
      run.fill(each);
      run.run();
      run.check();
    }
  });
}

// Ranks enter runs late at random, over many back-to-back runs. Every other run repeats the numbers of the
// first run.
template <typename RankRun, typename Shape>
void run_with_delays(const Shape& test_shape) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    RankRun run(self, test_shape);
    std::mt19937 random(static_cast<unsigned>(self.rank) + 1);
    std::vector<std::byte> first;
    for (int i = 0; i < 12; ++i) {
      run.fill(i % 2 == 0 ? seed : seed + static_cast<std::uint64_t>(i));
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      run.run();
      if (i % 2 == 1) {
        run.check();
        continue;
      }
      if (first.empty()) first = run.c();
      EXPECT_EQ(std::memcmp(first.data(), run.c().data(), first.size()), 0)
          << "run " << i << " differs from the first";
    }
  });
}

struct variant {
  isthmus_datatype input, output;
  isthmus_matrix_layout b_layout;
  isthmus_fused_mode mode;
  std::uint64_t gap;
};

template <typename Body>
void each_variant(Body&& body) {
  const std::pair<isthmus_datatype, isthmus_datatype> types[] = {{ISTHMUS_FLOAT16, ISTHMUS_FLOAT32},
                                                                 {ISTHMUS_FLOAT16, ISTHMUS_FLOAT16},
                                                                 {ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32},
                                                                 {ISTHMUS_BFLOAT16, ISTHMUS_BFLOAT16},
                                                                 {ISTHMUS_FLOAT32, ISTHMUS_FLOAT32}};
  for (const auto& [input, output] : types)
    for (const auto layout : {ISTHMUS_ROW_MAJOR, ISTHMUS_COLUMN_MAJOR})
      for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL})
        for (const std::uint64_t gap : {0, 5}) {
          SCOPED_TRACE(testing::Message()
                       << isthmus_datatype_name(input) << " " << isthmus_datatype_name(output) << " layout "
                       << layout << " mode " << mode << " gap " << gap);
          body(variant{input, output, layout, mode, gap});
        }
}

}  // namespace fused_test
