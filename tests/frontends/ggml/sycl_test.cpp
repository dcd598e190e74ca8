// libisthmus_ggml.so, preloaded, over SYCL queues of the CPU device: a stand-in ggml, the real SYCL runtime.
#include <gtest/gtest.h>

#include <chrono>
#include <sycl/sycl.hpp>
#include <thread>

#include "frontends/ggml/standin/ggml.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace {

// What ggml-sycl does when it records an event.
void record(void* queue) { static_cast<sycl::queue*>(queue)->ext_oneapi_submit_barrier(); }

class ggml_sycl : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const sycl::device cpu{sycl::cpu_selector_v};
    const sycl::context context(cpu);
    for (int i = 0; i < GetParam(); ++i) queues.emplace_back(context, cpu, sycl::property::queue::in_order{});
    std::vector<void*> pointers;
    for (auto& queue : queues) pointers.push_back(&queue);
    const auto backends = standin::make_sycl_backends(pointers, record);
    trio = standin::look_up(standin::registry_of(backends[0]));
    ASSERT_NE(trio.init, nullptr) << "is libisthmus_ggml.so preloaded?";
    auto temporary = backends;
    comm = trio.init(temporary.data(), temporary.size());
    ASSERT_NE(comm, nullptr);
  }
  void TearDown() override {
    if (comm != nullptr) trio.free(comm);
  }

  std::vector<sycl::queue> queues;
  standin::trio trio{};
  void* comm = nullptr;
};

// The sum starts after what was queued before, however late that is, and what is queued later sees it.
TEST_P(ggml_sycl, sums_in_the_order_of_the_queues) {
  const int n = GetParam();
  constexpr std::uint64_t most = 100000, seed = 5;
  std::vector<float*> data;
  for (auto& queue : queues) data.push_back(sycl::malloc_device<float>(most, queue));
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4096}, most}) {
    const std::uint64_t active = (std::uint64_t{1} << n) - 2;  // the first holds no shard
    std::vector<std::vector<float>> shard, result(queues.size(), std::vector<float>(count));
    std::vector<ggml_tensor*> tensors;
    for (int rank = 0; rank < n; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      const bool is_active = (active >> rank & 1u) != 0;
      shard.push_back(shards::make(seed, rank, count, is_active));
      tensors.push_back(
          standin::make_tensor(standin::type::f32, data[i], static_cast<std::int64_t>(count), is_active));
    }
    for (std::size_t i = 0; i < queues.size(); ++i) {
      queues[i].submit([&](sycl::handler& handler) {
        handler.host_task([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      });
      queues[i].memcpy(data[i], shard[i].data(), count * sizeof(float));
    }
    ASSERT_TRUE(trio.allreduce(comm, tensors.data()));
    for (std::size_t i = 0; i < queues.size(); ++i)
      queues[i].memcpy(result[i].data(), data[i], count * sizeof(float));
    for (auto& queue : queues) queue.wait();
    for (const auto& each : result)
      EXPECT_EQ(shards::count_wrong(each, seed, n, active), 0u) << "count " << count;
  }
  for (std::size_t i = 0; i < queues.size(); ++i) sycl::free(data[i], queues[i]);
}

INSTANTIATE_TEST_SUITE_P(devices, ggml_sycl, testing::Values(2, 3));

}  // namespace
