// isthmus_allreduce_rmsnorm on the host: results, the arguments that it rejects, and its failures.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/support.hpp"
#include "operators/allreduce_rmsnorm/norm_case.hpp"

namespace {

using rmsnorm_test::norm_case;
using rmsnorm_test::norm_outputs;
using rmsnorm_test::norm_shape;
using arguments = isthmus_allreduce_rmsnorm_arguments;

void expect_correct(const norm_shape& shape) {
  const norm_case test(shape);
  const auto outputs = rmsnorm_test::run_on_host(test);
  ASSERT_EQ(test.find_error(outputs.front()), "");
  for (const norm_outputs& each : outputs) ASSERT_TRUE(each == outputs.front()) << to_string(shape);
}

class host_ranks : public testing::TestWithParam<int> {};

TEST_P(host_ranks, results_are_correct_and_equal) {
  std::uint64_t seed = 1;
  for (const std::uint64_t hidden : {1, 7, 64, 1000, 8200})
    for (const std::uint64_t tokens : {1, 5})
      for (const norm_shape& shape : rmsnorm_test::kinds_of({GetParam(), tokens, hidden})) {
        norm_shape seeded = shape;
        seeded.seed = seed++;
        expect_correct(seeded);
        if (HasFatalFailure()) return;
      }
}

INSTANTIATE_TEST_SUITE_P(sizes, host_ranks, testing::Values(1, 2, 3));

// The order of the additions is documented, because the device kernels have the same.
TEST(allreduce_rmsnorm, squares_are_added_in_the_documented_order) {
  const norm_case test({1, 1, 16384, ISTHMUS_FLOAT32, ISTHMUS_FLOAT32, false, 3});
  const norm_outputs outputs = rmsnorm_test::run_on_host(test).front();
  std::vector<float> x(16384), weight(16384), normalized(16384);
  std::memcpy(x.data(), outputs.residual.data(), outputs.residual.size());
  std::memcpy(weight.data(), test.weight().data(), test.weight().size());
  std::memcpy(normalized.data(), outputs.normalized.data(), outputs.normalized.size());
  std::vector<float> sums(1024, 0.0F);
  for (std::size_t vector = 0; vector < 4096; ++vector) {
    volatile float sum = 0;  // no fused multiply-add
    for (std::size_t i = 4 * vector; i < 4 * vector + 4; ++i) {
      const volatile float square = x[i] * x[i];
      sum = sum + square;
    }
    sums[vector % 1024] += sum;
  }
  // 32 groups of 32 accumulators, then the 32 results.
  const auto add = [](const float* numbers) {
    std::array<float, 32> level{};
    std::copy_n(numbers, 32, level.begin());
    for (std::size_t half = 16; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) level[i] = level[i] + level[i + half];
    return level[0];
  };
  std::array<float, 32> groups{};
  for (std::size_t i = 0; i < 32; ++i) groups[i] = add(&sums[32 * i]);
  const float factor = 1.0F / std::sqrt(add(groups.data()) / 16384.0F + static_cast<float>(norm_case::eps));
  for (std::size_t i = 0; i < 16384; ++i) {
    const volatile float product = x[i] * factor;
    ASSERT_EQ(normalized[i], product * weight[i]) << i;
  }
}

// A program that was compiled before round_before_weight existed passes a smaller struct.
TEST(allreduce_rmsnorm, accepts_first_version_of_arguments) {
  const norm_case test({1, 3, 40, ISTHMUS_BFLOAT16, ISTHMUS_BFLOAT16, false, 4});
  test::ranks ranks(1, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  norm_outputs outputs = test.poisoned_outputs();
  arguments call = test.arguments(0, outputs);
  call.struct_bytes = offsetof(arguments, round_before_weight);
  call.round_before_weight = 77;  // not part of the struct
  ASSERT_EQ(isthmus_allreduce_rmsnorm(ranks[0], &call), ISTHMUS_SUCCESS) << test::last_error().message;
  EXPECT_TRUE(outputs == rmsnorm_test::run_on_host(test).front());
}

// The two roundings give different bits, so a call that ignored the argument would fail.
TEST(allreduce_rmsnorm, rounding_before_the_weight_changes_bits) {
  for (const isthmus_datatype datatype : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32}) {
    norm_shape shape{1, 4, 500, datatype, datatype, false, 5};
    const norm_outputs once = rmsnorm_test::run_on_host(norm_case(shape)).front();
    shape.round_before_weight = true;
    const norm_outputs twice = rmsnorm_test::run_on_host(norm_case(shape)).front();
    EXPECT_TRUE(once.residual == twice.residual);
    EXPECT_EQ(once.normalized == twice.normalized, datatype == ISTHMUS_FLOAT32);
  }
}

TEST(allreduce_rmsnorm, works_in_place) {
  const norm_case test({2, 3, 40, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 8});
  const norm_outputs expected = rmsnorm_test::run_on_host(test).front();
  test::ranks ranks(2, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  topology::run_on_each_rank(2, [&](int rank) {
    rmsnorm_test::bytes input = test.contribution(rank), residual = test.residual();
    norm_outputs unused = test.poisoned_outputs();
    arguments own = test.arguments(rank, unused);
    own.input = own.normalized = input.data();
    own.residual = own.residual_out = residual.data();
    EXPECT_EQ(isthmus_allreduce_rmsnorm(ranks[rank], &own), ISTHMUS_SUCCESS) << test::last_error().message;
    EXPECT_TRUE(input == expected.normalized);
    EXPECT_TRUE(residual == expected.residual);
  });
}

// Returns true if the call fails with this status, its message contains `text`, and no output changed.
testing::AssertionResult fails(isthmus_status status, const char* text, isthmus_communicator communicator,
                               const arguments& call, const norm_case& test, const norm_outputs& outputs) {
  const isthmus_status actual = isthmus_allreduce_rmsnorm(communicator, &call);
  const isthmus_error_info error = test::last_error();
  if (actual != status || std::strstr(error.message, text) == nullptr)
    return testing::AssertionFailure() << "status " << actual << ": " << error.message;
  if (!(outputs == test.poisoned_outputs())) return testing::AssertionFailure() << "an output was written";
  return testing::AssertionSuccess();
}

TEST(allreduce_rmsnorm, rejects_invalid_arguments) {
  test::ranks ranks(2, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const norm_case test({2, 2, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT8_E4M3, true, 2});
  norm_outputs outputs = test.poisoned_outputs();
  const arguments valid = test.arguments(0, outputs);
  float scale = 1;
  const auto rejects = [&](const char* text, auto change) {
    arguments call = valid;
    change(call);
    return fails(ISTHMUS_ERROR_INVALID_ARGUMENT, text, ranks[0], call, test, outputs);
  };
  EXPECT_TRUE(rejects("struct_bytes = 8 must be at least", [](arguments& call) { call.struct_bytes = 8; }));
  EXPECT_TRUE(rejects("datatype = 99 is out of range",
                      [](arguments& call) { call.datatype = static_cast<isthmus_datatype>(99); }));
  EXPECT_TRUE(rejects("datatype = int8 must be float16, bfloat16 or float32",
                      [](arguments& call) { call.datatype = ISTHMUS_INT8; }));
  EXPECT_TRUE(
      rejects("output = bfloat16 must be float16", [](arguments& call) { call.output = ISTHMUS_BFLOAT16; }));
  EXPECT_TRUE(rejects("hidden = 0 must be in [1, 16384]", [](arguments& call) { call.hidden = 0; }));
  EXPECT_TRUE(rejects("hidden = 16385 must be in [1, 16384]", [](arguments& call) { call.hidden = 16385; }));
  EXPECT_TRUE(
      rejects("do not fit the address space", [](arguments& call) { call.tokens = ~std::uint64_t{0}; }));
  for (const double eps : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_TRUE(rejects("must be a finite float32 of at least 0", [eps](arguments& call) { call.eps = eps; }));
  EXPECT_TRUE(rejects("scale and scales are both set", [&](arguments& call) { call.scale = &scale; }));
  EXPECT_TRUE(rejects("scale and scales are both NULL", [](arguments& call) { call.scales = nullptr; }));
  EXPECT_TRUE(rejects("scales must be NULL if output = float16",
                      [](arguments& call) { call.output = ISTHMUS_FLOAT16; }));
  EXPECT_TRUE(rejects("stream = 0x1 must be NULL on the host platform",
                      [](arguments& call) { call.stream = reinterpret_cast<isthmus_stream>(1); }));
  EXPECT_TRUE(
      rejects("round_before_weight = 2 must be 0 or 1", [](arguments& call) { call.round_before_weight = 2; }));
  EXPECT_TRUE(rejects("input is NULL", [](arguments& call) { call.input = nullptr; }));
  EXPECT_TRUE(rejects("weight is NULL", [](arguments& call) { call.weight = nullptr; }));
  EXPECT_TRUE(rejects("normalized is NULL", [](arguments& call) { call.normalized = nullptr; }));
  EXPECT_TRUE(rejects("overlap", [](arguments& call) { call.normalized = call.residual_out; }));
  EXPECT_TRUE(
      rejects("normalized [", [](arguments& call) { call.normalized = const_cast<void*>(call.input); }));
  EXPECT_TRUE(
      rejects("residual_out [", [](arguments& call) { call.residual_out = const_cast<void*>(call.weight); }));
  EXPECT_EQ(isthmus_allreduce_rmsnorm(ranks[0], nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_group_start();
  EXPECT_TRUE(fails(ISTHMUS_ERROR_INVALID_USAGE, "inside a group", ranks[0], valid, test, outputs));
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_communicator_abort(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_TRUE(fails(ISTHMUS_ERROR_ABORTED, "", ranks[0], valid, test, outputs));
}

TEST(allreduce_rmsnorm, reports_different_arguments_on_all_ranks) {
  test::ranks ranks(2, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const norm_case test({2, 2, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 2});
  const auto expect_mismatch = [&](const char* text, auto change) {
    topology::run_on_each_rank(2, [&](int rank) {
      norm_outputs outputs = test.poisoned_outputs();
      arguments call = test.arguments(rank, outputs);
      if (rank == 1) change(call);
      EXPECT_TRUE(fails(ISTHMUS_ERROR_MISMATCH, text, ranks[rank], call, test, outputs));
    });
  };
  expect_mismatch("rank 1 passed tokens = 1", [](arguments& call) { call.tokens = 1; });
  expect_mismatch("rank 1 passed tokens = 0", [](arguments& call) { call.tokens = 0; });
  expect_mismatch("hidden = 4", [](arguments& call) { call.tokens = 4, call.hidden = 4; });
  expect_mismatch("bfloat16", [](arguments& call) { call.datatype = call.output = ISTHMUS_BFLOAT16; });
  expect_mismatch("eps = 0.5", [](arguments& call) { call.eps = 0.5; });
  expect_mismatch("round_before_weight = 1", [](arguments& call) { call.round_before_weight = 1; });
}

TEST(allreduce_rmsnorm, needs_a_backend_with_kernels_on_devices) {
  standin::reset();
  test::ranks device(2, standin::configuration(), ISTHMUS_PLATFORM_OPENCL);
  ASSERT_EQ(device.status(), ISTHMUS_SUCCESS) << device.message();
  const norm_case test({2, 2, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 2});
  norm_outputs outputs = test.poisoned_outputs();
  EXPECT_TRUE(fails(ISTHMUS_ERROR_UNSUPPORTED, "backend has no kernels for allreduce_rmsnorm", device[0],
                    test.arguments(0, outputs), test, outputs));
}

TEST(enqueue, rejects_an_operation_with_rmsnorm) {
  test::ranks ranks(1, "");
  const isthmus_rmsnorm norm{};
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.rmsnorm = &norm;
  EXPECT_EQ(isthmus_enqueue(ranks[0], &operation), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(test::last_error().message, "rmsnorm"), nullptr);
}

}  // namespace
