// The SYCL version of tensor_parallel.h on CPU sub-devices, in one context and in separate contexts. Plain
// copies between devices of different contexts would do nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <isthmus/sycl/tensor_parallel.hpp>
#include <map>
#include <span>
#include <thread>

#include "shards.hpp"

namespace {

std::vector<sycl::device> cpu_devices(std::size_t n) {
  const sycl::device cpu{sycl::cpu_selector_v};
  const auto units = cpu.get_info<sycl::info::device::max_compute_units>();
  std::vector<sycl::device> devices;
  // AdaptiveCpp does not partition devices.
  if (units >= 2 && cpu.get_info<sycl::info::device::partition_max_sub_devices>() >= 2)
    for (std::size_t i = 0; i < n; i += units)  // more ranks than cores share them
      for (const auto& sub_device :
           cpu.create_sub_devices<sycl::info::partition_property::partition_equally>(1))
        if (devices.size() < n) devices.push_back(sub_device);
  while (devices.size() < n) devices.push_back(cpu);
  return devices;
}

// With one context, all queues use the whole CPU. Several sub-devices in one context are not tested,
// because even a copy and a kernel on the same queue occasionally run out of order there (DPC++ 2026.2,
// Intel CPU device).
std::vector<sycl::queue> make_queues(std::size_t n, bool one_context) {
  std::vector<sycl::queue> queues;
  const sycl::device cpu{sycl::cpu_selector_v};
  const sycl::context shared_context(cpu);
  for (const auto& sub_device : cpu_devices(n))
    queues.emplace_back(one_context ? shared_context : sycl::context(sub_device),
                        one_context ? cpu : sub_device, sycl::property::queue::in_order{});
  return queues;
}

// The tests with the same parameters share the queues and the object, because each new context takes 0.1 s to build
// its kernels.
class tensor_parallel_sycl : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  struct group {
    explicit group(std::vector<sycl::queue> of_ranks) : queues(std::move(of_ranks)), sum(queues) {}
    std::vector<sycl::queue> queues;
    isthmus::tensor_parallel sum;
  };
  static inline std::map<ParamType, group> groups;
  static void TearDownTestSuite() { groups.clear(); }

  group& shared_group() {
    const auto [n, one_context] = GetParam();
    const auto entry = groups.find(GetParam());
    if (entry != groups.end()) return entry->second;
    return groups.try_emplace(GetParam(), make_queues(static_cast<std::size_t>(n), one_context)).first->second;
  }
  void make(std::uint64_t bytes) {
    queues = shared_group().queues;
    for (auto& queue : queues) pointers.push_back(sycl::malloc_device(bytes, queue));
  }
  void TearDown() override {
    for (std::size_t i = 0; i < queues.size(); ++i) {
      queues[i].wait();
      sycl::free(pointers[i], queues[i]);
    }
  }
  int n() const { return static_cast<int>(queues.size()); }
  void write(std::uint64_t seed, std::uint64_t count, std::uint64_t active) {
    for (int rank = 0; rank < n(); ++rank) {
      const auto shard = shards::make(seed, rank, count, (active >> rank & 1u) != 0);
      queues[static_cast<std::size_t>(rank)]
          .memcpy(pointers[static_cast<std::size_t>(rank)], shard.data(), count * 4)
          .wait();
    }
  }
  std::vector<float> read(int rank, std::uint64_t count) {  // ordered by the queue alone
    std::vector<float> result(count);
    queues[static_cast<std::size_t>(rank)]
        .memcpy(result.data(), pointers[static_cast<std::size_t>(rank)], count * 4)
        .wait();
    return result;
  }

  std::vector<sycl::queue> queues;
  std::vector<void*> pointers;
};

TEST_P(tensor_parallel_sycl, inactive_shards_with_nan_are_ignored) {
  make(4096);
  isthmus::tensor_parallel& sum = shared_group().sum;
  for (std::uint64_t active = 0; active < 1u << n(); ++active) {
    write(active + 7, 333, active);
    ASSERT_TRUE(sum.allreduce(pointers.data(), 333, ISTHMUS_FLOAT32, active));
    for (int rank = 0; rank < n(); ++rank)
      ASSERT_EQ(shards::count_wrong(read(rank, 333), active + 7, n(), active), 0u)
          << "mask " << active << ", rank " << rank;
  }
}

TEST_P(tensor_parallel_sycl, sizes_grow_and_shrink_on_both_wires) {
  make((5 << 20) + 64);
  isthmus::tensor_parallel& sum = shared_group().sum;
  for (const std::uint64_t count : {0, 1, 257, 32767, 32768, 32769, 4, (4 << 20) / 4 + 1, 100})
    for (const bool narrow : {false, true}) {
      write(count, count, ISTHMUS_ALL_ACTIVE);
      ASSERT_TRUE(sum.allreduce(pointers.data(), count, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE, narrow));
      for (int rank = 0; rank < n(); ++rank)
        ASSERT_EQ(shards::count_wrong(read(rank, count), count, n(), ISTHMUS_ALL_ACTIVE), 0u)
            << count << " on rank " << rank;
    }
}

TEST_P(tensor_parallel_sycl, calls_are_ordered_without_the_host) {
  make(40000);
  isthmus::tensor_parallel& sum = shared_group().sum;
  write(1, 10000, 1);  // one active shard first, then all shards: each call multiplies by n
  ASSERT_TRUE(sum.allreduce(pointers.data(), 10000, ISTHMUS_FLOAT32, 1));
  float factor = 1;
  for (int call = 0; call < 6; ++call) {
    ASSERT_TRUE(sum.allreduce(pointers.data(), call % 2 == 0 ? 10000 : 9000));
    factor *= static_cast<float>(n());
  }
  for (int rank = 0; rank < n(); ++rank) {
    const auto result = read(rank, 9000);
    for (std::uint64_t i = 0; i < 9000; ++i)
      ASSERT_EQ(result[i], shards::value(1, 0, i) * factor) << i << " on rank " << rank;
  }
}

TEST_P(tensor_parallel_sycl, late_producer_does_not_block_the_host) {
  make(4000);
  isthmus::tensor_parallel& sum = shared_group().sum;
  write(3, 1000, ISTHMUS_ALL_ACTIVE);
  ASSERT_TRUE(sum.allreduce(pointers.data(), 1));
  for (auto& queue : queues) queue.wait();
  write(3, 1000, ISTHMUS_ALL_ACTIVE);
  // Ends when it is released. If the host waits for it, it is not released and ends after a long time limit.
  std::atomic<bool> released{false}, gave_up{false};
  queues.back().submit([&](sycl::handler& handler) {
    isthmus::detail::host_work(handler, [&] {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(100);
      while (!released && !(gave_up = std::chrono::steady_clock::now() > limit))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  const bool one_context = std::get<1>(GetParam());
  std::jthread host_thread;  // between contexts the host has to wait
  if (!one_context)
    host_thread = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      released = true;
    });
  EXPECT_TRUE(sum.allreduce(pointers.data(), 1000));
  released = true;
  for (int rank = 0; rank < n(); ++rank)
    EXPECT_EQ(shards::count_wrong(read(rank, 1000), 3, n(), ISTHMUS_ALL_ACTIVE), 0u) << rank;
  EXPECT_FALSE(gave_up) << "the host waited for the producer";
}

TEST_P(tensor_parallel_sycl, failed_call_modifies_no_tensor) {
  make(400);
  isthmus::tensor_parallel& sum = shared_group().sum;
  write(5, 100, ISTHMUS_ALL_ACTIVE);
  EXPECT_FALSE(sum.allreduce(pointers.data(), 100, ISTHMUS_INT32));
  // No device has enough memory for this. A single device needs none.
  EXPECT_TRUE(n() == 1 || !sum.allreduce(pointers.data(), std::uint64_t(1) << 44));
  for (int rank = 0; rank < n(); ++rank) EXPECT_EQ(read(rank, 100), shards::make(5, rank, 100, true));
  EXPECT_TRUE(sum.allreduce(pointers.data(), 100));
  EXPECT_EQ(shards::count_wrong(read(0, 100), 5, n(), ISTHMUS_ALL_ACTIVE), 0u);
}

TEST_P(tensor_parallel_sycl, works_as_the_engine_of_the_c_interface) {
  make(400000);
  std::vector<isthmus_device> devices(queues.size(), isthmus_device{ISTHMUS_PLATFORM_OPENCL, 0});
  std::vector<isthmus_stream> streams;
  for (auto& queue : queues) streams.push_back(&queue);
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.engine = isthmus::sycl_tensor_parallel_engine();
  isthmus_tensor_parallel handle = nullptr;
  ASSERT_EQ(isthmus_tensor_parallel_create(n(), devices.data(), streams.data(), &options, &handle),
            ISTHMUS_SUCCESS);
  for (const std::uint64_t count : {77, 100000}) {
    write(8, count, ISTHMUS_ALL_ACTIVE);
    ASSERT_EQ(
        isthmus_tensor_parallel_allreduce(handle, pointers.data(), count, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE),
        ISTHMUS_SUCCESS);
    for (int rank = 0; rank < n(); ++rank)
      EXPECT_EQ(shards::count_wrong(read(rank, count), 8, n(), ISTHMUS_ALL_ACTIVE), 0u) << rank;
  }
  isthmus_tensor_parallel_destroy(handle);
  streams[0] = nullptr;
  EXPECT_EQ(isthmus_tensor_parallel_create(n(), devices.data(), streams.data(), &options, &handle),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_EQ(handle, nullptr);
}

INSTANTIATE_TEST_SUITE_P(devices, tensor_parallel_sycl,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_in_one_context" : "_in_own_contexts");
                         });

// |result - exact| <= (2 u + u^2 + n 2^-23) * sum of |x|, u = 2^-8: the bound of tensor_parallel.h.
TEST(tensor_parallel_sycl_wire, bfloat16_wire_and_16_bit_types_round_correctly) {
  auto queues = make_queues(2, true);
  isthmus::tensor_parallel sum(queues);
  const std::uint64_t count = 5000;
  std::vector<std::vector<float>> inputs(2, std::vector<float>(count));
  std::vector<void*> pointers;
  for (int rank = 0; rank < 2; ++rank) {
    auto& input = inputs[static_cast<std::size_t>(rank)];
    oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, 9}, rank, 0,
                 std::as_writable_bytes(std::span(input)));
    auto& queue = queues[static_cast<std::size_t>(rank)];
    pointers.push_back(sycl::malloc_device(count * 4, queue));
    queue.memcpy(pointers.back(), input.data(), count * 4);
  }
  ASSERT_TRUE(sum.allreduce(pointers.data(), count, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE, true));
  std::vector<float> a(count), b(count);
  queues[0].memcpy(a.data(), pointers[0], count * 4).wait();
  queues[1].memcpy(b.data(), pointers[1], count * 4).wait();
  EXPECT_EQ(std::memcmp(a.data(), b.data(), count * 4), 0);
  const double u = std::ldexp(1.0, -8);
  std::uint64_t inexact = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(inputs[0][i]), y = static_cast<double>(inputs[1][i]);
    const double error = std::fabs(static_cast<double>(a[i]) - (x + y)), size = std::fabs(x) + std::fabs(y);
    ASSERT_LE(error, (2 * u + u * u + std::ldexp(2.0, -23)) * size + 1e-38) << i;
    inexact += error > 1e-6 * size;
  }
  EXPECT_GT(inexact, count / 2) << "nothing was rounded";
  for (int rank = 0; rank < 2; ++rank)
    sycl::free(pointers[static_cast<std::size_t>(rank)], queues[static_cast<std::size_t>(rank)]);
}

// Copies between such devices never complete, not even in plain SYCL, so there must be none.
TEST(tensor_parallel_sycl, completes_on_devices_without_peer_access) {
  const auto devices = cpu_devices(2);
  const sycl::context context(devices);
  std::vector<sycl::queue> queues;
  std::vector<void*> pointers;
  for (const auto& device : devices) {
    queues.emplace_back(context, device, sycl::property::queue::in_order{});
    pointers.push_back(sycl::malloc_device(4000, queues.back()));
  }
  isthmus::tensor_parallel sum(queues);
  for (int call = 0; call < 5; ++call) ASSERT_TRUE(sum.allreduce(pointers.data(), 1000));
  for (std::size_t i = 0; i < queues.size(); ++i) {
    queues[i].wait();
    sycl::free(pointers[i], queues[i]);
  }
}

}  // namespace
