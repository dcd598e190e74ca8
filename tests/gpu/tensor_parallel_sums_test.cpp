// Tests the results of tensor-parallel allreduce on real devices: masks, sizes, alignments,
// wire formats, datatypes.
#include <cmath>
#include <cstring>
#include <span>

#include "operators/tensor_parallel/shards.hpp"
#include "tensor_parallel_ranks.hpp"

namespace tensor_parallel_test {
namespace {

TEST_P(devices, inactive_shards_with_nan_are_ignored) {
  const int n = GetParam();
  for (const char* algorithm : {default_algorithm, zero_copy}) {
    device_ranks ranks(n, 1 << 20, ISTHMUS_WIRE_EXACT, algorithm);
    for (std::uint64_t active = 0; active < 1u << n; ++active)
      for (const std::uint64_t count : {33, 260000}) {  // one shot and two
        for (int rank = 0; rank < n; ++rank)
          ranks.write(rank, shards::make(active, rank, count, (active >> rank & 1u) != 0));
        ASSERT_TRUE(ranks.sum(count, active)) << last_error();
        for (int rank = 0; rank < n; ++rank)
          ASSERT_EQ(shards::count_wrong(ranks.read<float>(rank, count), active, n, active), 0u)
              << algorithm << " mask " << active << " of " << n << ", rank " << rank << ", " << count;
      }
  }
}

// With zero copy, devices write to each other's tensors, at any alignment, and must write nothing
// outside of them.
TEST_P(devices, zero_copy_writes_only_inside_the_tensors) {
  const int n = GetParam();
  device_ranks ranks(n, 24 << 20, ISTHMUS_WIRE_EXACT, zero_copy);
  for (const std::size_t skew : {0, 4, 8, 12})
    for (const std::uint64_t count : {1, 3, 9, 127, 32769, 1048577, 6000000}) {
      ranks.skew_bytes = skew;
      const std::uint64_t edge = 4;  // guard elements before and after the tensor
      for (int rank = 0; rank < n; ++rank) {
        std::vector<float> shard = shards::make(count, rank, count, true);
        shard.insert(shard.begin(), edge, 77.0f);
        shard.insert(shard.end(), edge, 77.0f);
        ranks.write(rank, shard);
      }
      ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_FLOAT32, edge * 4)) << last_error();
      for (int rank = 0; rank < n; ++rank) {
        std::vector<float> result = ranks.read<float>(rank, count + 2 * edge);
        for (std::uint64_t i = 0; i < edge; ++i)
          ASSERT_TRUE(result[i] == 77.0f && result[edge + count + i] == 77.0f)
              << "outside the tensor of rank " << rank << ", " << count << " elements, " << skew << " apart";
        result.erase(result.begin(), result.begin() + edge);
        result.resize(count);
        ASSERT_EQ(shards::count_wrong(result, count, n, ISTHMUS_ALL_ACTIVE), 0u)
            << "rank " << rank << ", " << count << " elements, " << skew << " apart";
      }
    }
}

TEST_P(devices, sums_are_right_at_any_size_and_alignment) {
  const int n = GetParam();
  for (const isthmus_wire wire : {ISTHMUS_WIRE_AUTO, ISTHMUS_WIRE_EXACT, ISTHMUS_WIRE_BFLOAT16}) {
    device_ranks ranks(n, 200 << 20, wire);
    for (const std::uint64_t count : {0, 1, 3, 127, 32767, 32768, 32769, 65535, 65536, 65537, 196608, 524287,
                                      1048577, 5000003, 20000001, 65536, 7})
      for (const std::size_t offset : {0, 4}) {
        std::vector<float> first;
        for (int rank = 0; rank < n; ++rank) ranks.write(rank, shards::make(count, rank, count, true), offset);
        ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_FLOAT32, offset)) << last_error();
        for (int rank = 0; rank < n; ++rank) {
          const auto result = ranks.read<float>(rank, count, offset);
          // Checking every element of the longest tensors is too slow on the host, so only rank 0 is checked.
          // The comparison with rank 0 covers the other ranks.
          if (rank == 0 || count < 100000) {
            ASSERT_EQ(shards::count_wrong(result, count, n, ISTHMUS_ALL_ACTIVE), 0u)
                << count << " on wire " << wire;
            first = result;
          }
          ASSERT_TRUE(std::memcmp(result.data(), first.data(), count * 4) == 0) << count << ", rank " << rank;
        }
        if (count > 6000000) break;
      }
  }
}

// The bound of tensor_parallel.h is |result - exact| <= (2 u + u^2 + n 2^-23) * sum of |x| with u = 2^-8. The
// exact wire has the bound of float32, (n - 1) 2^-24 / (1 - (n - 1) 2^-24).
TEST_P(devices, errors_are_bounded_and_ranks_bit_identical) {
  const int n = GetParam();
  for (const bool bf16 : {false, true}) {
    device_ranks ranks(n, 8 << 20, bf16 ? ISTHMUS_WIRE_BFLOAT16 : ISTHMUS_WIRE_EXACT);
    for (const std::uint64_t count : {1000, 2000003}) {
      std::vector<std::vector<float>> inputs(n, std::vector<float>(count));
      for (int rank = 0; rank < n; ++rank) {
        oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, 9}, rank, 0,
                     std::as_writable_bytes(std::span(inputs[rank])));
        ranks.write(rank, inputs[rank]);
      }
      ASSERT_TRUE(ranks.sum(count));
      const auto result = ranks.read<float>(0, count);
      for (int rank = 1; rank < n; ++rank)
        ASSERT_EQ(std::memcmp(ranks.read<float>(rank, count).data(), result.data(), count * 4), 0) << rank;
      const double u = std::ldexp(1.0, -8), v = (n - 1) * std::ldexp(1.0, -24);
      const double bound = bf16 ? 2 * u + u * u + n * std::ldexp(1.0, -23) : v / (1 - v);
      std::uint64_t inexact = 0;
      for (std::uint64_t i = 0; i < count; ++i) {
        double exact = 0, size = 0;
        for (const auto& input : inputs) {
          exact += static_cast<double>(input[i]);
          size += std::fabs(static_cast<double>(input[i]));
        }
        const double error = std::fabs(static_cast<double>(result[i]) - exact);
        ASSERT_LE(error, bound * size + 1e-38) << i;
        inexact += error > 1e-6 * size;
      }
      EXPECT_EQ(inexact > count / 2, bf16);
    }
  }
}

TEST_P(devices, sixteen_bit_types_are_summed_exactly) {
  const int n = GetParam();
  for (const char* algorithm : {default_algorithm, zero_copy}) {
    device_ranks ranks(n, 4 << 20, ISTHMUS_WIRE_AUTO, algorithm);
    ranks.skew_bytes = 2;
    for (const isthmus_datatype type : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16})
      for (const std::uint64_t count : {5, 70001, 1500000}) {
        const auto bits = [type](float number) {  // small integers, exact in both types
          std::uint32_t word;
          std::memcpy(&word, &number, 4);
          if (type == ISTHMUS_BFLOAT16) return static_cast<std::uint16_t>(word >> 16);
          if (number == 0) return static_cast<std::uint16_t>(0);
          return static_cast<std::uint16_t>((word >> 16 & 0x8000u) | ((word >> 13 & 0x3fc00u) - (112u << 10)) |
                                            (word >> 13 & 0x3ffu));
        };
        for (int rank = 0; rank < n; ++rank) {
          std::vector<std::uint16_t> shard(count);
          for (std::uint64_t i = 0; i < count; ++i) shard[i] = bits(shards::value(2, rank, i));
          ranks.write(rank, shard, 2);
        }
        ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, type, 2));
        for (int rank = 0; rank < n; ++rank) {
          const auto result = ranks.read<std::uint16_t>(rank, count, 2);
          std::uint64_t wrong = 0;
          for (std::uint64_t i = 0; i < count; ++i)
            wrong += result[i] != bits(shards::expected(2, n, ~0ull, i));
          ASSERT_EQ(wrong, 0u) << count << " of type " << type << ", rank " << rank;
        }
      }
  }
}

}  // namespace
}  // namespace tensor_parallel_test
