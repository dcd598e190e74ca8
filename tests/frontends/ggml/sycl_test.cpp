// Tests libisthmus_ggml.so, preloaded, on SYCL queues of the CPU device: a stand-in ggml and
// the real SYCL runtime.
#include <gtest/gtest.h>

#include <chrono>
#include <sycl/sycl.hpp>
#include <thread>

#include "frontends/ggml/standin/ggml.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace {

// Records an event like ggml-sycl.
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
    functions = standin::look_up(standin::registry_of(backends[0]));
    ASSERT_NE(functions.init, nullptr) << "is libisthmus_ggml.so preloaded?";
    auto temporary = backends;
    comm = functions.init(temporary.data(), temporary.size());
    ASSERT_NE(comm, nullptr);
  }
  void TearDown() override {
    if (comm != nullptr) functions.free(comm);
  }

  std::vector<sycl::queue> queues;
  standin::comm_functions functions{};
  void* comm = nullptr;
};

// The sum starts after all earlier work of the queues, however late that is, and later work sees the result.
TEST_P(ggml_sycl, sums_in_queue_order) {
  const int n = GetParam();
  constexpr std::uint64_t max_count = 100000, seed = 5;
  std::vector<float*> data;
  for (auto& queue : queues) data.push_back(sycl::malloc_device<float>(max_count, queue));
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4096}, max_count}) {
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
    ASSERT_TRUE(functions.allreduce(comm, tensors.data()));
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
