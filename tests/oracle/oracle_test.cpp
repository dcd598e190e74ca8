// Tests of the oracle: values from the specifications of the formats, and wrong results that it must reject.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "oracle/check.hpp"
#include "oracle/generator.hpp"
#include "oracle/number.hpp"

namespace oracle {
namespace {

long double value_of(isthmus_datatype datatype, std::uint64_t bits) {
  std::byte element[8];
  store_bits(datatype, bits, element);
  return decode(datatype, element);
}

TEST(number, decodes_the_values_of_the_specifications) {
  EXPECT_EQ(value_of(ISTHMUS_FLOAT16, 0x3c00), 1.0L);
  EXPECT_EQ(value_of(ISTHMUS_FLOAT16, 0x7bff), 65504.0L);
  EXPECT_EQ(value_of(ISTHMUS_FLOAT16, 0x0001), std::ldexp(1.0L, -24));
  EXPECT_TRUE(std::isinf(value_of(ISTHMUS_FLOAT16, 0xfc00)));
  EXPECT_EQ(value_of(ISTHMUS_BFLOAT16, 0xc000), -2.0L);
  EXPECT_EQ(value_of(ISTHMUS_FLOAT8_E4M3, 0x7e), 448.0L);  // OCP 8-bit floating point, table 2
  EXPECT_TRUE(std::isnan(value_of(ISTHMUS_FLOAT8_E4M3, 0xff)));
  EXPECT_EQ(value_of(ISTHMUS_FLOAT8_E4M3, 0x01), std::ldexp(1.0L, -9));
  EXPECT_EQ(value_of(ISTHMUS_FLOAT8_E5M2, 0x7b), 57344.0L);
  EXPECT_TRUE(std::isinf(value_of(ISTHMUS_FLOAT8_E5M2, 0x7c)));
  EXPECT_EQ(value_of(ISTHMUS_FLOAT32, 0xbf400000), -0.75L);
  EXPECT_EQ(value_of(ISTHMUS_FLOAT64, 0x4010000000000000), 4.0L);
}

TEST(number, rounds_like_the_compiler) {
  const float_format& single = format_of(ISTHMUS_FLOAT32);
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const std::uint64_t bits = mix(2, i);
    double wide = 0;
    std::memcpy(&wide, &bits, sizeof wide);
    int ignored = 0;
    if (i % 2 == 0) wide = std::ldexp(std::frexp(wide, &ignored), static_cast<int>(mix(3, i) % 300) - 160);
    if (std::isnan(wide)) continue;
    EXPECT_EQ(round_to(single, wide), static_cast<long double>(static_cast<float>(wide))) << wide;
  }
}

TEST(number, small_types_round_to_nearest_even) {
  for (const isthmus_datatype type :
       {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3, ISTHMUS_FLOAT8_E5M2}) {
    const float_format& format = format_of(type);
    for (std::uint64_t bits = 0; value_of(type, bits) < largest_finite(format); ++bits) {
      const long double low = value_of(type, bits);
      const long double high = value_of(type, bits + 1);
      ASSERT_EQ(round_to(format, low), low);
      ASSERT_LT(low, high);
      ASSERT_EQ(round_to(format, (low + high) / 2), bits % 2 == 0 ? low : high);
    }
  }
  EXPECT_EQ(round_to(format_of(ISTHMUS_FLOAT8_E4M3), 1e9L), 448.0L);
  EXPECT_TRUE(std::isinf(round_to(format_of(ISTHMUS_FLOAT16), 65520.0L)));
}

TEST(reduction, integers_wrap_and_averages_truncate) {
  const auto i8 = [](int value) { return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)); };
  const std::vector<std::uint64_t> large{i8(100), i8(100)};
  EXPECT_EQ(reduce_integers(ISTHMUS_INT8, ISTHMUS_SUM, large), i8(-56));
  EXPECT_EQ(reduce_integers(ISTHMUS_INT8, ISTHMUS_AVG, large), i8(-28));
  const std::vector<std::uint64_t> odd{i8(-3), i8(-4)};
  EXPECT_EQ(reduce_integers(ISTHMUS_INT8, ISTHMUS_AVG, odd), i8(-3));
  EXPECT_EQ(reduce_integers(ISTHMUS_INT32, ISTHMUS_MIN, odd), i8(-4));
  const std::vector<std::uint64_t> huge{~0ull, 1};
  EXPECT_EQ(reduce_integers(ISTHMUS_UINT64, ISTHMUS_MAX, huge), ~0ull);
  EXPECT_EQ(reduce_integers(ISTHMUS_UINT64, ISTHMUS_SUM, huge), 0u);
}

TEST(reduction, distinguishes_single_and_stepwise_rounding) {
  // 2048 + 1 + 1 in float16 is 2050 if rounded once, and 2048 if every step is rounded.
  const std::vector<long double> values{2048, 1, 1};
  const interval once = allowed(ISTHMUS_FLOAT16, ISTHMUS_SUM, values, false);
  EXPECT_TRUE(contains(ISTHMUS_FLOAT16, once, 2050));
  EXPECT_FALSE(contains(ISTHMUS_FLOAT16, once, 2048));
  const interval steps = allowed(ISTHMUS_FLOAT16, ISTHMUS_SUM, values, true);
  EXPECT_TRUE(contains(ISTHMUS_FLOAT16, steps, 2050));
  EXPECT_TRUE(contains(ISTHMUS_FLOAT16, steps, 2048));
  EXPECT_FALSE(contains(ISTHMUS_FLOAT16, steps, 2040));
}

TEST(reduction, handles_nan_infinity_and_overflow) {
  const long double infinity = std::numeric_limits<long double>::infinity();
  const std::vector<long double> opposite{infinity, -infinity};
  EXPECT_TRUE(allowed(ISTHMUS_FLOAT32, ISTHMUS_SUM, opposite, false).is_nan);
  EXPECT_EQ(allowed(ISTHMUS_FLOAT32, ISTHMUS_MAX, opposite, false).low, infinity);
  const std::vector<long double> overflow{448, 448};
  const interval sum = allowed(ISTHMUS_FLOAT8_E4M3, ISTHMUS_SUM, overflow, false);
  EXPECT_TRUE(contains(ISTHMUS_FLOAT8_E4M3, sum, 448));
  EXPECT_FALSE(contains(ISTHMUS_FLOAT8_E4M3, sum, 416));
  EXPECT_TRUE(contains(ISTHMUS_FLOAT8_E4M3, allowed(ISTHMUS_FLOAT8_E4M3, ISTHMUS_AVG, overflow, false), 448));
  const std::vector<long double> halves{65504, 65504};
  EXPECT_TRUE(contains(ISTHMUS_FLOAT16, allowed(ISTHMUS_FLOAT16, ISTHMUS_SUM, halves, false), infinity));
  EXPECT_FALSE(contains(ISTHMUS_FLOAT16, allowed(ISTHMUS_FLOAT16, ISTHMUS_SUM, halves, false), 65504));
}

// A correct float32 allreduce of 4 ranks that the tests modify.
struct sample {
  check_request request{
      {ISTHMUS_FLOAT32, ISTHMUS_SUM, input_class::ordinary, 7}, {ISTHMUS_ALLREDUCE, 4, 0, 5000, {}, {}}, 0};
  std::vector<float> result = std::vector<float>(5000);
  sample() {
    std::vector<float> one(5000);
    for (int r = 0; r < 4; ++r) {
      fill(request.inputs, r, 0, std::as_writable_bytes(std::span(one)));
      for (std::size_t i = 0; i < one.size(); ++i) result[i] += one[i];
    }
  }
  auto error() const { return find_error(request, reinterpret_cast<const std::byte*>(result.data())); }
};

TEST(check, accepts_a_correct_result) {
  const sample correct;
  EXPECT_EQ(correct.error(), std::nullopt);
}

TEST(check, rejects_a_wrong_element_at_any_index) {
  for (const std::size_t index : {0u, 17u, 4095u, 4096u, 4999u}) {
    sample wrong;
    wrong.result[index] += 1e-3F;
    ASSERT_TRUE(wrong.error().has_value());
    EXPECT_NE(wrong.error()->find("element " + std::to_string(index) + " is"), std::string::npos)
        << *wrong.error();
  }
}

// The float64 fast path accepts most sums. The number of errors must still be that of the exact bound.
TEST(check, counts_elements_outside_the_bound) {
  for (const isthmus_reduction_op op : {ISTHMUS_SUM, ISTHMUS_AVG}) {
    sample perturbed;
    perturbed.request.inputs.op = op;
    std::vector<std::vector<float>> inputs(4, std::vector<float>(5000));
    for (int r = 0; r < 4; ++r)
      fill(perturbed.request.inputs, r, 0, std::as_writable_bytes(std::span(inputs[r])));
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < perturbed.result.size(); ++i) {
      std::vector<long double> contributions;
      for (const std::vector<float>& one : inputs) contributions.push_back(one[i]);
      float& element = perturbed.result[i];
      if (op == ISTHMUS_AVG) element /= 4;
      for (std::size_t step = 0; step < i % 12; ++step)
        element = std::nextafter(element, i % 2 == 0 ? 9.0F : -9.0F);
      if (i % 501 == 0) element = i % 2 == 0 ? NAN : INFINITY;
      expected +=
          contains(ISTHMUS_FLOAT32, allowed(ISTHMUS_FLOAT32, op, contributions, false), element) ? 0 : 1;
    }
    EXPECT_EQ(count_errors(perturbed.request, reinterpret_cast<const std::byte*>(perturbed.result.data())),
              expected);
    EXPECT_GT(expected, 500U);
    EXPECT_LT(expected, 4500U);
  }
}

TEST(check, counts_wrong_elements_of_moved_data) {
  check_request request{
      {ISTHMUS_FLOAT8_E5M2, ISTHMUS_SUM, input_class::special, 5}, {ISTHMUS_BROADCAST, 2, 1, 9000, {}, {}}, 0};
  std::vector<std::byte> copied(9000);
  fill(request.inputs, 1, 0, copied);
  EXPECT_EQ(count_errors(request, copied.data()), 0U);
  for (const std::size_t index : {0U, 4095U, 8999U}) copied[index] ^= std::byte{1};
  EXPECT_EQ(count_errors(request, copied.data()), 3U);
}

TEST(check, rejects_missing_rank_and_wrong_operation) {
  sample missing;
  std::vector<float> one(5000);
  fill(missing.request.inputs, 3, 0, std::as_writable_bytes(std::span(one)));
  for (std::size_t i = 0; i < one.size(); ++i) missing.result[i] -= one[i];
  EXPECT_TRUE(missing.error().has_value());
  sample product;
  product.request.inputs.op = ISTHMUS_PROD;
  EXPECT_TRUE(product.error().has_value());
}

TEST(check, rejects_blocks_in_the_wrong_order) {
  check_request request{
      {ISTHMUS_INT16, ISTHMUS_SUM, input_class::ordinary, 9}, {ISTHMUS_ALLGATHER, 3, 0, 11, {}, {}}, 1};
  std::vector<std::byte> gathered(3 * 11 * 2);
  for (int r = 0; r < 3; ++r)
    fill(request.inputs, r, 0, std::span(gathered).subspan(static_cast<std::size_t>(r) * 22, 22));
  EXPECT_EQ(find_error(request, gathered.data()), std::nullopt);
  std::swap_ranges(gathered.begin(), gathered.begin() + 22, gathered.begin() + 22);
  EXPECT_TRUE(find_error(request, gathered.data()).has_value());
}

TEST(inputs, ranges_of_a_rank_are_consistent) {
  const input_spec inputs{ISTHMUS_BFLOAT16, ISTHMUS_SUM, input_class::special, 3};
  std::vector<std::byte> all(200);
  std::vector<std::byte> range(60);
  fill(inputs, 2, 0, all);
  fill(inputs, 2, 50, range);
  EXPECT_EQ(std::memcmp(all.data() + 100, range.data(), range.size()), 0);
  fill(inputs, 1, 50, range);
  EXPECT_NE(std::memcmp(all.data() + 100, range.data(), range.size()), 0);
}

TEST(inputs, streams_continue_beyond_32_bits) {
  const input_spec inputs{ISTHMUS_UINT32, ISTHMUS_SUM, input_class::ordinary, 3};
  constexpr std::uint64_t end = std::uint64_t{1} << 32;
  std::vector<std::uint32_t> across(8);
  std::vector<std::uint32_t> after(4);
  std::vector<std::uint32_t> first(4);
  fill(inputs, 0, end - 4, std::as_writable_bytes(std::span(across)));
  fill(inputs, 0, end, std::as_writable_bytes(std::span(after)));
  fill(inputs, 0, 0, std::as_writable_bytes(std::span(first)));
  EXPECT_TRUE(std::equal(after.begin(), after.end(), across.begin() + 4));
  EXPECT_NE(after, first);
}

// Kernels compute the same inputs from the key of a stream.
TEST(inputs, device_generator_matches_fill) {
  std::vector<float> host(1000);
  fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, input_class::ordinary, 11}, 3, 0,
       std::as_writable_bytes(std::span(host)));
  for (unsigned i = 0; i < host.size(); ++i) {
    const unsigned bits = random_float32(stream_key(11, 3), i);
    EXPECT_EQ(std::memcmp(&bits, &host[i], sizeof bits), 0);
  }
}

}  // namespace
}  // namespace oracle
