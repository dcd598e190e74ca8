// Tests the ordering of tensor-parallel allreduce on real devices: late producers, unsynchronized consumers,
// back-to-back calls, and destruction with work in flight.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "tensor_parallel_ranks.hpp"

namespace tensor_parallel_test {
namespace {

__global__ void delayed_fill(float* data, std::uint64_t count, float value, long long nanoseconds) {
  std::uint64_t now, start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (static_cast<long long>(now - start) < nanoseconds);
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) data[i] = value;
}

// Counts the elements that are not `expected`, then writes `next`: the consumer of one call and the producer
// of the next.
__global__ void consume_and_produce(float* data, std::uint64_t count, float expected, float next,
                                    unsigned* wrong, long long nanoseconds) {
  std::uint64_t now, start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  const std::uint64_t stride = std::uint64_t(gridDim.x) * blockDim.x;
  for (std::uint64_t i = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (data[i] != expected) atomicAdd(wrong, 1u);
    data[i] = next;
  }
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (static_cast<long long>(now - start) < nanoseconds);
}

TEST_P(devices, late_producer_does_not_block_the_host) {
  const int n = GetParam();
  const std::uint64_t count = 10000;
  device_ranks ranks(n, count * 8, ISTHMUS_WIRE_EXACT);
  ASSERT_TRUE(ranks.sum(1));
  ranks.wait();
  for (int late_rank = 0; late_rank < n; ++late_rank) {
    const auto start = std::chrono::steady_clock::now();
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      delayed_fill<<<1, 256, 0, ranks.streams[rank]>>>(reinterpret_cast<float*>(ranks.memory[rank]), count,
                                                       rank + 1.0f, rank == late_rank ? 50000000 : 0);
    }
    ASSERT_TRUE(ranks.sum(count));
    for (int rank = 0; rank < n; ++rank)
      check(cudaMemcpyAsync(ranks.memory[rank] + count * 4, ranks.memory[rank], count * 4,
                            cudaMemcpyDeviceToDevice, ranks.streams[rank]));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40)) << "the host waited";
    for (int rank = 0; rank < n; ++rank) {
      const auto result = ranks.read<float>(rank, count, count * 4);
      EXPECT_EQ(result, std::vector<float>(count, n * (n + 1) / 2.0f)) << rank;
    }
  }
}

// Every call uses different numbers, so that a stale word of an earlier generation is detected. A different
// rank is late each time.
void back_to_back(device_ranks& ranks, int calls, const std::vector<std::uint64_t>& counts) {
  const int n = ranks.size();
  std::vector<unsigned*> wrong(n);
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaMalloc(reinterpret_cast<void**>(&wrong[rank]), 4));
    check(cudaMemset(wrong[rank], 0, 4));
  }
  const auto value = [](int call, int rank) { return static_cast<float>((call * 7 + rank * 5) % 13); };
  const auto total = [&](int call) {
    float sum = 0;
    for (int rank = 0; rank < n; ++rank) sum += value(call, rank);
    return sum;
  };
  for (int call = 0; call <= calls; ++call) {
    const std::uint64_t previous_count = counts[(call + counts.size() - 1) % counts.size()];
    const std::uint64_t count = counts[call % counts.size()];
    const std::uint64_t max_count = std::max(previous_count, count);
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      auto* data = reinterpret_cast<float*>(ranks.memory[rank]);
      const int blocks = static_cast<int>(std::min<std::uint64_t>((max_count + 255) / 256, 1024));
      const long long delay = call % 97 == rank ? 20000 : 0;
      // Only the elements of the previous call are compared; the others are initialized.
      consume_and_produce<<<blocks, 256, 0, ranks.streams[rank]>>>(
          data, call == 0 ? 0 : previous_count, total(call - 1), value(call, rank), wrong[rank], delay);
      if (count > previous_count || call == 0) {
        const std::uint64_t from = call == 0 ? 0 : previous_count;
        delayed_fill<<<1, 1024, 0, ranks.streams[rank]>>>(data + from, count - from, value(call, rank), 0);
      }
    }
    ASSERT_TRUE(ranks.sum(count)) << "call " << call << ": " << last_error();
  }
  ranks.wait();
  for (int rank = 0; rank < n; ++rank) {
    unsigned count = 0;
    check(cudaMemcpy(&count, wrong[rank], 4, cudaMemcpyDefault));
    EXPECT_EQ(count, 0u) << "rank " << rank;
    check(cudaFree(wrong[rank]));
  }
}

TEST_P(devices, hundred_thousand_skewed_calls) {
  device_ranks ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT);
  back_to_back(ranks, 100000, {1, 100, 5000, 40, 20000});
}

// With one element, most ranks have nothing to reduce and run ahead of the others.
TEST_P(devices, thirty_thousand_skewed_zero_copy_calls) {
  device_ranks ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT, zero_copy);
  back_to_back(ranks, 30000, {1, 1, 100, 5000, 2, 40, 20000});
}

// Long calls use all generations of the inbox several times and follow each other without a pause.
TEST_P(devices, skewed_long_calls) {
  const std::vector<std::uint64_t> counts = {40000000, 16000000, 9000000, 2000001, 33000005, 70000, 12345678};
  for (const isthmus_wire wire : {ISTHMUS_WIRE_EXACT, ISTHMUS_WIRE_BFLOAT16}) {
    device_ranks ranks(GetParam(), 170 << 20, wire);
    back_to_back(ranks, 200, counts);
  }
  device_ranks ranks(GetParam(), 170 << 20, ISTHMUS_WIRE_EXACT, zero_copy);
  back_to_back(ranks, 200, counts);
}

TEST_P(devices, destroy_waits_for_work_in_flight) {
  const int n = GetParam();
  const std::uint64_t count = 4000;
  auto ranks = std::make_unique<device_ranks>(n, count * 4, ISTHMUS_WIRE_EXACT);
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    delayed_fill<<<1, 256, 0, ranks->streams[rank]>>>(reinterpret_cast<float*>(ranks->memory[rank]), count,
                                                      2.0f, rank == 0 ? 30000000 : 0);
  }
  ASSERT_TRUE(ranks->sum(count));
  isthmus_tensor_parallel_destroy(std::exchange(ranks->handle, nullptr));
  for (int rank = 0; rank < n; ++rank)
    EXPECT_EQ(ranks->read<float>(rank, count), std::vector<float>(count, 2.0f * n));
}

}  // namespace
}  // namespace tensor_parallel_test
