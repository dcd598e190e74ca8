// What the trio sums on real devices: masks, sizes, alignments, wires, types.
#include <cmath>
#include <cstring>
#include <span>

#include "operators/tensor_parallel/shards.hpp"
#include "tensor_parallel_ranks.hpp"

namespace trio_test {
namespace {

TEST_P(devices, every_active_mask_with_nan_in_inactive_shards) {
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

// Devices write into each other's tensors there, whatever the alignment of each, and nowhere else.
TEST_P(devices, direct_results_fill_tensors_of_different_alignments_and_nothing_beside) {
  const int n = GetParam();
  device_ranks ranks(n, 24 << 20, ISTHMUS_WIRE_EXACT, zero_copy);
  for (const std::size_t skew : {0, 4, 8, 12})
    for (const std::uint64_t count : {1, 3, 9, 127, 32769, 1048577, 6000000}) {
      ranks.skew_bytes = skew;
      const std::uint64_t edge = 4;  // elements before and behind the tensor
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
              << "beside the tensor of rank " << rank << ", " << count << " elements, " << skew << " apart";
        result.erase(result.begin(), result.begin() + edge);
        result.resize(count);
        ASSERT_EQ(shards::count_wrong(result, count, n, ISTHMUS_ALL_ACTIVE), 0u)
            << "rank " << rank << ", " << count << " elements, " << skew << " apart";
      }
    }
}

TEST_P(devices, sizes_grow_and_shrink_on_both_wires_at_any_alignment) {
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
          // Looking at every element of the longest takes the host too long; identity covers the others.
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

// |result - exact| <= (2 u + u^2 + n 2^-23) * sum of |x|, u = 2^-8: the bound of tensor_parallel.h; and on the
// exact wire float32's own bound, (n - 1) 2^-24 / (1 - (n - 1) 2^-24).
TEST_P(devices, random_numbers_stay_in_their_bounds_and_ranks_agree_bit_by_bit) {
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

TEST_P(devices, sixteen_bit_types) {
  const int n = GetParam();
  for (const char* algorithm : {default_algorithm, zero_copy}) {
    device_ranks ranks(n, 4 << 20, ISTHMUS_WIRE_AUTO, algorithm);
    ranks.skew_bytes = 2;
    for (const isthmus_datatype type : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16})
      for (const std::uint64_t count : {5, 70001, 1500000}) {
        const auto bits = [type](float whole) {  // small whole numbers, exact in both types
          std::uint32_t word;
          std::memcpy(&word, &whole, 4);
          if (type == ISTHMUS_BFLOAT16) return static_cast<std::uint16_t>(word >> 16);
          if (whole == 0) return static_cast<std::uint16_t>(0);
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
}  // namespace trio_test
