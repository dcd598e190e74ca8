// GEMM_ALLREDUCE: types, layouts and odd shapes against a float64 oracle, late ranks, equal bits on all ranks, and the
// views of a run.
#include <gtest/gtest.h>

#include "row_parallel.hpp"

namespace fused_test {
namespace {

using rank_run = row_parallel_run<ISTHMUS_FUSED_GEMM_ALLREDUCE>;
using shape = rank_run::shape;

void run_case(const shape& test_shape) { run_twice<rank_run>(test_shape); }

TEST(fused_allreduce, types_and_layouts) {
  each_variant([](const variant& kind) {
    run_case({.rows = 37,
              .n = 29,
              .k = 41,
              .input = kind.input,
              .output = kind.output,
              .b_layout = kind.b_layout,
              .gap = kind.gap,
              .mode = kind.mode == ISTHMUS_FUSED_PIPELINED ? ISTHMUS_FUSED_BY_MODEL : kind.mode,
              .bias = kind.gap == 0,
              .uneven = kind.gap != 0,
              .alpha = kind.gap == 0 ? 1.0 : -1.25});
  });
}

TEST(fused_allreduce, odd_shapes) {
  for (const auto& [m, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 300, 7), std::tuple(300, 1, 3),
                                std::tuple(16, 64, 96), std::tuple(5, 130, 257), std::tuple(2, 9000, 24)})
    for (const auto layout : {ISTHMUS_ROW_MAJOR, ISTHMUS_COLUMN_MAJOR})
      run_case({.rows = static_cast<std::uint64_t>(m),
                .n = static_cast<std::uint64_t>(n),
                .k = static_cast<std::uint64_t>(k),
                .input = ISTHMUS_BFLOAT16,
                .output = ISTHMUS_BFLOAT16,
                .b_layout = layout,
                .bias = true});
}

TEST(fused_allreduce, nothing_to_do) {
  run_case({.rows = 0, .n = 5, .k = 4});
  run_case({.rows = 3, .n = 0, .k = 4});
  run_case({.rows = 3, .n = 5, .k = 0, .bias = true});
  run_case({.rows = 3, .n = 5, .k = 0, .uneven = true});
}

TEST(fused_allreduce, late_ranks_get_identical_bits) {
  run_with_delays<rank_run>(shape{.rows = 7, .n = 80, .k = 64, .input = ISTHMUS_BFLOAT16});
  run_with_delays<rank_run>(shape{.rows = 7,
                                  .n = 80,
                                  .k = 64,
                                  .input = ISTHMUS_BFLOAT16,
                                  .output = ISTHMUS_BFLOAT16,
                                  .b_layout = ISTHMUS_COLUMN_MAJOR});
}

TEST(fused_allreduce, all_ranks_get_equal_bits) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs all ranks in this process";
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(test_ranks::get().size()));
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows = 9,
                        .n = 72,
                        .k = 40,
                        .input = ISTHMUS_FLOAT16,
                        .output = ISTHMUS_FLOAT16,
                        .b_layout = ISTHMUS_COLUMN_MAJOR});
    run.fill(seed);
    run.run();
    results[static_cast<std::size_t>(self.rank)] = run.c();
  });
  for (const auto& each : results) EXPECT_EQ(each, results.front());
}

// Views can run in any order, and the plan still computes correct results afterwards.
TEST(fused_allreduce, views_of_a_run) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows = 16, .n = 9, .k = 12});
    run.fill(42);
    run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
    run.run(ISTHMUS_FUSED_COMPUTE_ONLY);
    run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
    run.check();
    run.fill(43);
    run.run();
    run.check();
  });
}

TEST(fused_allreduce, unsupported_arguments_are_rejected) {
  test_ranks::get().for_each_rank([](member& self) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = ISTHMUS_FUSED_GEMM_ALLREDUCE;
    description.m = 3, description.n = 4, description.k = 4;
    description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
    isthmus_fused_plan plan = nullptr;
    const auto expect_error = [&](isthmus_status status, const char* words) {
      EXPECT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), status);
      EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
    };
    description.flags = ISTHMUS_FUSED_SHARDED_B;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "SHARDED_B is set for GEMM_ALLREDUCE");
    description.flags = 0, description.chunks = 1;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "chunks = 1 must be 0");
    description.chunks = 0, description.mode = ISTHMUS_FUSED_PIPELINED;
    if (self.size > 1) expect_error(ISTHMUS_ERROR_UNSUPPORTED, "pipelined was requested, but");
    description.mode = ISTHMUS_FUSED_BY_MODEL;
    ASSERT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), ISTHMUS_SUCCESS)
        << last_error_text();
    alignas(8) static thread_local std::byte memory[1024];
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = memory, arguments.b = memory + 256, arguments.c = memory + 512;
    arguments.alpha = 1, arguments.beta = 1;
    EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("beta = 1 must be 0 for GEMM_ALLREDUCE"),
              std::string::npos);
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS);
  });
}

TEST(fused_allreduce, operations_with_products_are_checked) {
  if (platform() != ISTHMUS_PLATFORM_HOST) GTEST_SKIP() << "passes host memory";
  test_ranks::get().for_each_rank([](member& self) {
    alignas(8) static thread_local std::byte memory[1024];
    isthmus_product product{};
    product.rows = 2, product.columns = 4, product.inner = product.lda = product.ldb = 4;
    product.a = memory, product.b = memory + 256;
    product.alpha = 1;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_BFLOAT16;
    operation.op = ISTHMUS_SUM;
    operation.count = 8;
    operation.send_buf = operation.recv_buf = memory + 512;
    operation.product = &product;
    const auto expect_error = [&](isthmus_status status, const char* words) {
      EXPECT_EQ(isthmus_enqueue(self.communicator, &operation), status);
      EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
    };
    expect_error(ISTHMUS_ERROR_UNSUPPORTED, "backend has no kernels for products");
    product.rows = 17, operation.count = 68;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "with at most 16 rows");
    product.rows = 2, operation.count = 8, product.lda = 3;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "lda = 3");
    product.lda = 4, operation.datatype = ISTHMUS_FLOAT32;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "float16 or bfloat16");
    operation.datatype = ISTHMUS_BFLOAT16, product.b = nullptr;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "a or b is NULL");
    product.b = memory + 256, operation.send_buf = memory;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "must be recv_buf");
    operation.send_buf = operation.recv_buf;
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    expect_error(ISTHMUS_ERROR_INVALID_USAGE, "is inside a group");
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  });
}

}  // namespace
}  // namespace fused_test
