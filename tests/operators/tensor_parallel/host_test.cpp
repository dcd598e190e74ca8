// The functions of tensor_parallel.h on the host platform.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "oracle/number.hpp"
#include "shards.hpp"

namespace {

struct handle {
  isthmus_tensor_parallel value = nullptr;
  explicit handle(int n, isthmus_wire wire = ISTHMUS_WIRE_AUTO) {
    const std::vector<isthmus_device> devices(static_cast<std::size_t>(n),
                                              isthmus_device{ISTHMUS_PLATFORM_HOST, 0});
    isthmus_tensor_parallel_options options{};
    options.struct_bytes = sizeof options;
    options.wire = wire;
    isthmus_tensor_parallel_create(n, devices.data(), nullptr, &options, &value);
  }
  ~handle() { isthmus_tensor_parallel_destroy(value); }
};

std::string last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info.message;
}

struct tensor {
  std::vector<std::vector<float>> shard;
  std::vector<void*> pointers;
  tensor(std::uint64_t seed, int ranks, std::uint64_t count, std::uint64_t active) {
    for (int rank = 0; rank < ranks; ++rank)
      shard.push_back(shards::make(seed, rank, count, (active >> rank & 1u) != 0));
    for (auto& each : shard) pointers.push_back(each.data());
  }
};

TEST(tensor_parallel_host, inactive_shards_with_nan_are_ignored) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const handle engine(ranks, ISTHMUS_WIRE_EXACT);
    ASSERT_NE(engine.value, nullptr) << last_error();
    for (std::uint64_t active = 0; active < 1u << ranks; ++active) {
      tensor sum(active + 1, ranks, 33, active);
      ASSERT_EQ(
          isthmus_tensor_parallel_allreduce(engine.value, sum.pointers.data(), 33, ISTHMUS_FLOAT32, active),
          ISTHMUS_SUCCESS);
      for (int rank = 0; rank < ranks; ++rank)
        ASSERT_EQ(shards::count_wrong(sum.shard[static_cast<std::size_t>(rank)], active + 1, ranks, active), 0u)
            << "mask " << active << " of " << ranks << ", rank " << rank;
    }
  }
}

TEST(tensor_parallel_host, sizes_around_the_thresholds_and_blocks) {
  for (int ranks : {2, 3, 16}) {
    const handle engine(ranks);
    for (std::uint64_t count :
         {0, 1, 16383, 16384, 16385, 32767, 32768, 32769, 65535, 65537, (4 << 20) / 4 + 1, 5}) {
      tensor sum(count + 3, ranks, count, ISTHMUS_ALL_ACTIVE);
      ASSERT_EQ(isthmus_tensor_parallel_allreduce(engine.value, sum.pointers.data(), count, ISTHMUS_FLOAT32,
                                                  ISTHMUS_ALL_ACTIVE),
                ISTHMUS_SUCCESS);
      for (const auto& shard : sum.shard)
        ASSERT_EQ(shards::count_wrong(shard, count + 3, ranks, ISTHMUS_ALL_ACTIVE), 0u)
            << count << " of " << ranks;
    }
  }
}

// |result - exact| <= (2 u + u^2 + n 2^-23) * sum of |x|, u = 2^-8: the bound of tensor_parallel.h.
TEST(tensor_parallel_host, bfloat16_wire_rounds_within_its_error_bound) {
  const std::uint64_t count = 20000;
  for (int ranks : {2, 5}) {
    const handle engine(ranks, ISTHMUS_WIRE_BFLOAT16);
    std::vector<std::vector<float>> shard(static_cast<std::size_t>(ranks), std::vector<float>(count));
    std::vector<void*> pointers;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& own = shard[static_cast<std::size_t>(rank)];
      oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, 9}, rank, 0,
                   std::as_writable_bytes(std::span(own)));
      pointers.push_back(own.data());
    }
    const auto inputs = shard;
    ASSERT_EQ(isthmus_tensor_parallel_allreduce(engine.value, pointers.data(), count, ISTHMUS_FLOAT32,
                                                ISTHMUS_ALL_ACTIVE),
              ISTHMUS_SUCCESS);
    const double u = std::ldexp(1.0, -8);
    std::uint64_t inexact = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      double exact = 0, size = 0;
      for (const auto& input : inputs) {
        exact += static_cast<double>(input[i]);
        size += std::fabs(static_cast<double>(input[i]));
      }
      const double error = std::fabs(static_cast<double>(shard[0][i]) - exact);
      ASSERT_LE(error, (2 * u + u * u + ranks * std::ldexp(1.0, -23)) * size + 1e-38) << i;
      inexact += error > 1e-6 * size;
    }
    EXPECT_GT(inexact, count / 2) << "nothing was rounded, so no bfloat16 wire was used";
    for (const auto& each : shard) EXPECT_EQ(std::memcmp(each.data(), shard[0].data(), count * 4), 0);
  }
}

TEST(tensor_parallel_host, sums_every_datatype_rounding_once) {
  const int ranks = 3;
  const std::uint64_t count = 1000;
  const handle engine(ranks);
  for (const auto type : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16}) {
    std::vector<std::vector<std::byte>> shard(ranks, std::vector<std::byte>(count * 2));
    std::vector<void*> pointers;
    for (int rank = 0; rank < ranks; ++rank) {
      oracle::fill({type, ISTHMUS_SUM, oracle::input_class::ordinary, 4}, rank, 0,
                   shard[static_cast<std::size_t>(rank)]);
      pointers.push_back(shard[static_cast<std::size_t>(rank)].data());
    }
    const auto inputs = shard;
    ASSERT_EQ(isthmus_tensor_parallel_allreduce(engine.value, pointers.data(), count, type, ISTHMUS_ALL_ACTIVE),
              ISTHMUS_SUCCESS);
    for (std::uint64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const auto& input : inputs) sum += static_cast<float>(oracle::decode(type, input.data() + i * 2));
      ASSERT_EQ(oracle::decode(type, shard[1].data() + i * 2), oracle::round_to(oracle::format_of(type), sum))
          << i;
    }
  }
}

TEST(tensor_parallel_host, failed_call_modifies_no_tensor) {
  const handle engine(2);
  tensor sum(5, 2, 100, ISTHMUS_ALL_ACTIVE);
  const auto previous_shard = sum.shard;
  void* missing[2] = {sum.pointers[0], nullptr};
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(engine.value, missing, 100, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("NULL"), std::string::npos);
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(engine.value, sum.pointers.data(), 100,
                                              static_cast<isthmus_datatype>(99), 3),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(nullptr, sum.pointers.data(), 100, ISTHMUS_FLOAT32, 3),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(engine.value, nullptr, 100, ISTHMUS_FLOAT32, 3),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  void* misaligned[2] = {sum.pointers[0], static_cast<std::byte*>(sum.pointers[1]) + 1};
  EXPECT_EQ(
      isthmus_tensor_parallel_allreduce(engine.value, misaligned, 99, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE),
      ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(sum.shard, previous_shard);
}

TEST(tensor_parallel_host, one_rank_keeps_its_tensor_or_gets_zeros) {
  const handle engine(1);
  tensor sum(5, 1, 50, 1);
  const auto previous_shard = sum.shard;
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(engine.value, sum.pointers.data(), 50, ISTHMUS_FLOAT32, 1),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(sum.shard, previous_shard);
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(engine.value, sum.pointers.data(), 50, ISTHMUS_FLOAT32, 0),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(sum.shard[0], std::vector<float>(50, 0.0f));
}

}  // namespace
