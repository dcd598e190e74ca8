// Checks isthmus_reduce_local and the kernels of all instruction sets against the reference.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/kernels.hpp"
#include "reference.hpp"

namespace shm_test {
namespace {

using bytes = std::vector<std::byte>;
using isthmus::cpu::kernel_table;
using isthmus::cpu::usable_kernels;

std::string name_of(const kernel_table& table, int datatype, int op) {
  return std::string(table.name) + " " + isthmus_datatype_name(static_cast<isthmus_datatype>(datatype)) + " " +
         isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(op));
}

// All bit patterns of the small types, random bit patterns of the others.
bytes patterns(isthmus_datatype datatype, std::size_t count, std::mt19937_64& random) {
  bytes data(count * width(datatype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = width(datatype) <= 2 ? i : random();
    std::memcpy(data.data() + i * width(datatype), &word, width(datatype));
  }
  return data;
}

bytes random_patterns(isthmus_datatype datatype, std::size_t count, std::mt19937_64& random) {
  bytes data(count * width(datatype));
  for (auto& each : data) each = static_cast<std::byte>(random());
  if (datatype == ISTHMUS_FLOAT32 || datatype == ISTHMUS_FLOAT64)  // mostly ordinary numbers
    for (std::size_t i = 0; i < count; ++i) {
      const double value = std::uniform_real_distribution<double>(-100, 100)(random);
      const auto narrow = static_cast<float>(value);
      if (i % 16 == 0) continue;
      if (datatype == ISTHMUS_FLOAT32)
        std::memcpy(data.data() + i * 4, &narrow, 4);
      else
        std::memcpy(data.data() + i * 8, &value, 8);
    }
  return data;
}

// Sources start at an offset of one element, so that kernels cannot rely on more than element alignment.
void expect_equal_to_reference(const kernel_table& table, const std::vector<bytes>& in, std::size_t count,
                               isthmus_datatype datatype, isthmus_reduction_op op, bool is_in_place) {
  const std::size_t unit = width(datatype);
  std::vector<bytes> shifted;
  std::vector<const void*> sources;
  for (const bytes& each : in) {
    bytes& copy = shifted.emplace_back(each.size() + unit);
    std::copy(each.begin(), each.end(), copy.begin() + static_cast<std::ptrdiff_t>(unit));
  }
  for (const bytes& each : shifted) sources.push_back(each.data() + unit);
  bytes separate(count * unit + unit, std::byte{0x5a});
  std::byte* out =
      is_in_place ? const_cast<std::byte*>(static_cast<const std::byte*>(sources.back())) : separate.data();
  table.reduce[datatype][op](out, sources.data(), static_cast<int>(in.size()), count);
  const bytes expected = reduce_reference(in, count, datatype, op);
  ASSERT_TRUE(same_elements(expected.data(), out, count, datatype))
      << name_of(table, datatype, op) << ", " << in.size() << " sources, " << count << " elements"
      << (is_in_place ? ", in place" : "");
  if (!is_in_place) {
    for (std::size_t i = count * unit; i < separate.size(); ++i)
      ASSERT_EQ(separate[i], std::byte{0x5a}) << "written past the end";
  }
}

TEST(host_kernels, all_reductions_match_the_reference) {
  std::mt19937_64 random(5);
  for (const kernel_table* const* table = usable_kernels(); *table != nullptr; ++table)
    for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype)
      for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op)
        for (const std::size_t n : {2u, 3u, 4u, 5u, 9u})
          for (const std::size_t count : {0u, 1u, 15u, 64u, 1500u}) {
            std::vector<bytes> in;
            for (std::size_t s = 0; s < n; ++s)
              in.push_back(random_patterns(static_cast<isthmus_datatype>(datatype), count, random));
            expect_equal_to_reference(**table, in, count, static_cast<isthmus_datatype>(datatype),
                                      static_cast<isthmus_reduction_op>(op), n % 2 == 1);
          }
}

// max(x, x) = x passes every bit pattern through load and store: 65536 values of the 16-bit types.
TEST(host_kernels, conversions_preserve_all_bit_patterns) {
  std::mt19937_64 random(6);
  for (const kernel_table* const* table = usable_kernels(); *table != nullptr; ++table)
    for (const auto datatype : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3}) {
      const std::size_t count = width(datatype) == 1 ? 256 : 65536;
      const bytes all = patterns(datatype, count, random);
      const void* const sources[] = {all.data(), all.data()};
      bytes out(all.size());
      (*table)->reduce[datatype][ISTHMUS_MAX](out.data(), sources, 2, count);
      EXPECT_TRUE(same_elements(all.data(), out.data(), count, datatype))
          << name_of(**table, datatype, ISTHMUS_MAX);
    }
}

// All pairs of the 8-bit types, and all 16-bit values combined with many others: rounding at every position,
// ties, subnormals, overflow, infinity and NaN.
TEST(host_kernels, rounding_is_exact_for_all_pairs) {
  std::mt19937_64 random(7);
  for (const kernel_table* const* table = usable_kernels(); *table != nullptr; ++table)
    for (const auto op : {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_AVG, ISTHMUS_MIN})
      for (const auto datatype :
           {ISTHMUS_FLOAT8_E4M3, ISTHMUS_FLOAT8_E5M2, ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16}) {
        const std::size_t unit = width(datatype), count = unit == 1 ? 256 : 65536;
        const bytes all = patterns(datatype, count, random);
        for (int round = 0; round < (unit == 1 ? 256 : 12); ++round) {
          bytes other(all.size());
          for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t bits = unit == 1 ? static_cast<std::uint64_t>(round) : random();
            std::memcpy(other.data() + i * unit, &bits, unit);
          }
          expect_equal_to_reference(**table, {all, other}, count, datatype, op, false);
        }
      }
}

// Copies around the sizes of a line, a block of interleaved lines, a page and a group of pages. The bytes after each
// range must not change.
TEST(host_kernels, copies_of_lines_are_exact) {
  constexpr std::size_t guard_bytes = 64, max_bytes = 9 * 4096;
  struct alignas(64) buffer {
    std::byte bytes[max_bytes + guard_bytes];
  };
  std::mt19937_64 random(8);
  const auto source = std::make_unique<buffer[]>(isthmus::cpu::max_copy_streams);
  const auto destination = std::make_unique<buffer[]>(isthmus::cpu::max_copy_streams);
  for (std::size_t s = 0; s < isthmus::cpu::max_copy_streams; ++s)
    for (std::byte& each : source[s].bytes) each = static_cast<std::byte>(random());
  for (const kernel_table* const* table = usable_kernels(); *table != nullptr; ++table)
    for (const auto mode : {isthmus::cpu::store_mode::cached, isthmus::cpu::store_mode::streaming})
      for (std::size_t streams = 1; streams <= isthmus::cpu::max_copy_streams; ++streams)
        for (const std::size_t lines : {0u, 1u, 2u, 7u, 8u, 9u, 63u, 64u, 65u, 200u, 257u, 576u}) {
          const std::size_t size = lines * 64;
          std::vector<isthmus::cpu::copy_range> ranges;
          for (std::size_t s = 0; s < streams; ++s) {
            std::memset(destination[s].bytes, 0x5a, sizeof destination[s].bytes);
            ranges.push_back({destination[s].bytes, source[s].bytes, size});
          }
          (*table)->copy_lines(ranges.data(), streams, size, mode);
          for (std::size_t s = 0; s < streams; ++s) {
            const std::string name =
                std::string((*table)->name) + ", range " + std::to_string(s) + " of " + std::to_string(streams);
            ASSERT_EQ(std::memcmp(destination[s].bytes, source[s].bytes, size), 0) << name << ", " << size;
            for (std::size_t i = size; i < sizeof destination[s].bytes; ++i)
              ASSERT_EQ(destination[s].bytes[i], std::byte{0x5a}) << name << ", " << size << ", byte " << i;
          }
        }
}

TEST(host_kernels, min_and_max_propagate_nan) {
  for (const kernel_table* const* table = usable_kernels(); *table != nullptr; ++table)
    for (const auto op : {ISTHMUS_MIN, ISTHMUS_MAX})
      for (int position = 0; position < 5; ++position) {
        float values[5] = {1, -2, 3, -4, 5};
        values[position] = NAN;
        const void* const sources[] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
        float out = 0;
        (*table)->reduce[ISTHMUS_FLOAT32][op](&out, sources, 5, 1);
        EXPECT_TRUE(std::isnan(out)) << (*table)->name << " position " << position;
      }
}

TEST(host_kernels, fp8_saturates) {
  const std::uint8_t e4m3[2] = {0x7e, 0xfe}, e5m2[2] = {0x7b, 0xfb};  // +-448, +-57344
  std::uint8_t out[2];
  std::memcpy(out, e4m3, 2);
  EXPECT_EQ(isthmus_reduce_local(e4m3, out, 2, ISTHMUS_FLOAT8_E4M3, ISTHMUS_SUM), ISTHMUS_SUCCESS);
  EXPECT_EQ(std::memcmp(out, e4m3, 2), 0);
  std::memcpy(out, e5m2, 2);
  EXPECT_EQ(isthmus_reduce_local(e5m2, out, 2, ISTHMUS_FLOAT8_E5M2, ISTHMUS_SUM), ISTHMUS_SUCCESS);
  EXPECT_EQ(std::memcmp(out, e5m2, 2), 0);
}

TEST(reduce_local, rounds_at_each_step_and_avg_adds) {
  const float in[] = {1.5f, -2, 1e30f};
  float out[] = {2, 3, 1e30f};
  ASSERT_EQ(isthmus_reduce_local(in, out, 3, ISTHMUS_FLOAT32, ISTHMUS_AVG), ISTHMUS_SUCCESS);
  EXPECT_EQ(out[0], 3.5f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], 2e30f);
  const std::uint16_t one = 0x3f80;  // bfloat16: 256 + 1 is a tie that always rounds to 256
  std::uint16_t total = 0x4380;
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(isthmus_reduce_local(&one, &total, 1, ISTHMUS_BFLOAT16, ISTHMUS_SUM), ISTHMUS_SUCCESS);
  EXPECT_EQ(total, 0x4380);
}

TEST(reduce_local, integers_wrap) {
  const std::int8_t in[] = {127, -128, 16};
  std::int8_t out[] = {1, -1, 16};
  ASSERT_EQ(isthmus_reduce_local(in, out, 3, ISTHMUS_INT8, ISTHMUS_SUM), ISTHMUS_SUCCESS);
  EXPECT_EQ(out[0], -128);
  EXPECT_EQ(out[1], 127);
  const std::uint16_t factor = 65535;
  std::uint16_t product = 65535;
  ASSERT_EQ(isthmus_reduce_local(&factor, &product, 1, ISTHMUS_UINT16, ISTHMUS_PROD), ISTHMUS_SUCCESS);
  EXPECT_EQ(product, 1);
}

TEST(reduce_local, invalid_arguments_are_rejected_without_writes) {
  float value = 7;
  isthmus_error_info info{};
  EXPECT_EQ(isthmus_reduce_local(&value, &value, 1, static_cast<isthmus_datatype>(99), ISTHMUS_SUM),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_last_error(&info);
  EXPECT_NE(std::strstr(info.message, "datatype = 99"), nullptr) << info.message;
  EXPECT_EQ(isthmus_reduce_local(&value, &value, 1, ISTHMUS_FLOAT32, static_cast<isthmus_reduction_op>(-1)),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_reduce_local(nullptr, &value, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_last_error(&info);
  EXPECT_NE(std::strstr(info.message, "in_buf"), nullptr) << info.message;
  EXPECT_EQ(isthmus_reduce_local(nullptr, nullptr, 0, ISTHMUS_FLOAT32, ISTHMUS_SUM), ISTHMUS_SUCCESS);
  EXPECT_EQ(value, 7);
}

}  // namespace
}  // namespace shm_test
