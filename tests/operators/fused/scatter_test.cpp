// GEMM_REDUCE_SCATTER: types, layouts and odd shapes against a float64 oracle, late ranks, bitwise
// reproducibility, and the views of a run.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "row_parallel.hpp"

namespace fused_test {
namespace {

using rank_run = row_parallel_run<ISTHMUS_FUSED_GEMM_REDUCE_SCATTER>;
using shape = rank_run::shape;

void run_case(const shape& test_shape) { run_twice<rank_run>(test_shape); }

TEST(fused_scatter, types_and_layouts) {
  each_variant([](const variant& kind) {
    run_case({.rows = 37,
              .n = 29,
              .k = 41,
              .input = kind.input,
              .output = kind.output,
              .b_layout = kind.b_layout,
              .gap = kind.gap,
              .chunks = 3,
              .mode = kind.mode,
              .bias = kind.gap == 0,
              .uneven = kind.gap != 0,
              .alpha = kind.gap == 0 ? 1.0 : -1.25});
  });
}

TEST(fused_scatter, odd_shapes_and_chunk_counts) {
  for (const auto& [rows, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 300, 7), std::tuple(300, 1, 3),
                                   std::tuple(130, 17, 257), std::tuple(513, 8, 16)})
    run_case({.rows = static_cast<std::uint64_t>(rows),
              .n = static_cast<std::uint64_t>(n),
              .k = static_cast<std::uint64_t>(k)});
  for (const std::uint32_t chunks : {1u, 2u, 7u, 64u})
    run_case({.rows = 64, .n = 12, .k = 20, .chunks = chunks});
}

TEST(fused_scatter, nothing_to_do) {
  run_case({.rows = 0, .n = 5, .k = 4});
  run_case({.rows = 3, .n = 0, .k = 4});
  run_case({.rows = 3, .n = 5, .k = 0, .bias = true});
  run_case({.rows = 3, .n = 5, .k = 0, .uneven = true});
  run_case({.rows = 3, .n = 5, .k = 0, .mode = ISTHMUS_FUSED_SEQUENTIAL, .bias = true});
}

// A rank must not add to sums that have not arrived, or overwrite sums that its neighbor still reads.
TEST(fused_scatter, late_ranks_get_identical_bits) {
  run_with_delays<rank_run>(shape{.rows = 96, .n = 40, .k = 64, .input = ISTHMUS_BFLOAT16, .chunks = 5});
}

// Views can run in any order, and the plan still computes correct results afterwards.
TEST(fused_scatter, views_of_a_run) {
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL}) {
      rank_run run(self, {.rows = 16, .n = 9, .k = 12, .chunks = 2, .mode = mode});
      run.fill(42);
      run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
      run.run(ISTHMUS_FUSED_COMPUTE_ONLY);
      run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
      run.fill(43);
      run.run();
      run.check();
    }
  });
}

// A faster rank may already push sums of its next run into the buffer of a rank that only computes.
TEST(fused_scatter, computing_alone_keeps_received_sums) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows = 16, .n = 9, .k = 12, .chunks = 2});
    for (std::uint64_t i = 0; i < 8; ++i) {
      run.fill(seed + i);
      run.enqueue();
      run.download();
      if (static_cast<int>(i) % self.size == self.rank)
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      run.enqueue(ISTHMUS_FUSED_COMPUTE_ONLY);
      run.enqueue();
      run.download();
      run.check();
    }
  });
}

TEST(fused_scatter, unsupported_arguments_are_rejected) {
  test_ranks::get().for_each_rank([](member& self) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = ISTHMUS_FUSED_GEMM_REDUCE_SCATTER;
    description.m = 4 * static_cast<std::uint64_t>(self.size), description.n = 4, description.k = 4;
    description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
    description.flags = ISTHMUS_FUSED_SHARDED_B;
    isthmus_fused_plan plan = nullptr;
    EXPECT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan),
              ISTHMUS_ERROR_INVALID_ARGUMENT);
    description.flags = 0;
    ASSERT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), ISTHMUS_SUCCESS)
        << last_error_text();
    alignas(8) static thread_local std::byte memory[4096];
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = memory, arguments.b = memory + 1024, arguments.c = memory + 2048;
    arguments.alpha = 1, arguments.beta = 1;
    EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("beta = 1 must be 0"), std::string::npos);
    arguments.beta = 0, arguments.gathered_a = memory + 3072;
    EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("gathered_a must be NULL"), std::string::npos);
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS);
  });
}

}  // namespace
}  // namespace fused_test
