// tensor_parallel.hpp on devices.
#include <isthmus/sycl/tensor_parallel.hpp>

#include "kernels.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace sycl_device_test {
namespace {

// Three in-order queues of the first rank's device, in one context or in one each.
class tensor_parallel : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::size_t device_count = 3;
  void SetUp() override {
    if (rank_team::get().is_on_host()) GTEST_SKIP() << "tests/operators/tensor_parallel covers the host";
#if defined(ISTHMUS_SYCL_DPCPP) && !defined(SYCL_LANGUAGE_VERSION)
    GTEST_SKIP() << "DPC++ compiles no kernels for this device at run time";
#endif
    const sycl::queue& first = rank_team::get().members().front().queue;
    const sycl::device device = first.get_device();
    for (std::size_t i = 0; i < device_count; ++i) {
      queues.emplace_back(GetParam() ? first.get_context() : sycl::context(device), device,
                          sycl::property::queue::in_order{});
      tensors.push_back(std::make_unique<block<float>>(max_elements, queues.back()));
      pointers.push_back(tensors.back()->data());
    }
  }
  void write(std::uint64_t seed, std::uint64_t elements, std::uint64_t active) {
    for (std::size_t i = 0; i < device_count; ++i) {
      const auto shard = shards::make(seed, static_cast<int>(i), elements, (active >> i & 1U) != 0);
      queues[i].memcpy(pointers[i], shard.data(), elements * sizeof(float)).wait();
    }
  }
  // On all devices; ordered only by their queues.
  std::uint64_t count_wrong(std::uint64_t seed, std::uint64_t elements, std::uint64_t active) {
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < device_count; ++i) {
      std::vector<float> result(elements);
      queues[i].memcpy(result.data(), pointers[i], elements * sizeof(float)).wait();
      wrong += shards::count_wrong(result, seed, device_count, active);
    }
    return wrong;
  }

  static constexpr std::size_t max_elements = 100'000;
  std::vector<sycl::queue> queues;
  std::vector<std::unique_ptr<block<float>>> tensors;
  std::vector<void*> pointers;
};

TEST_P(tensor_parallel, sum_of_every_mask_and_wire_format) {
  isthmus::tensor_parallel sum(queues);
  for (std::uint64_t active = 0; active < 1U << device_count; ++active)
    for (const bool narrow : {false, true}) {
      const std::uint64_t elements = active % 2 == 0 ? 333 : max_elements;
      write(active + 7, elements, active);
      ASSERT_TRUE(sum.allreduce(pointers.data(), elements, ISTHMUS_FLOAT32, active, narrow));
      ASSERT_EQ(count_wrong(active + 7, elements, active), 0U) << "mask " << active << ", narrow " << narrow;
    }
}

TEST_P(tensor_parallel, host_does_not_wait_for_producer) {
  if (!GetParam()) GTEST_SKIP() << "between contexts the host waits";
  const test_rank& self = rank_team::get().members().front();
  isthmus::tensor_parallel sum(queues);
  write(3, count, ISTHMUS_ALL_ACTIVE);
  ASSERT_TRUE(sum.allreduce(pointers.data(), count));  // allocates its slots
  for (sycl::queue& queue : queues) queue.wait();
  write(3, count, 0b110);
  kernel_gate gate(queues[0]);
  const block<float> host_copy(count, queues[1], sycl::usm::alloc::host);
  kernels_of(self).run(queues[0], apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                       view(static_cast<float*>(pointers[0]), count));
  ASSERT_TRUE(sum.allreduce(pointers.data(), count));
  sycl::event consumed = queues[1].memcpy(host_copy.data(), pointers[1], count * sizeof(float));
  gate.open();
  consumed.wait();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i)
    wrong += host_copy.data()[i] !=
             shards::expected(3, device_count, 0b110, i) + static_cast<float>(1000 * (self.rank + 1) + i);
  EXPECT_EQ(wrong, 0U) << "the host waited, or the order was lost";
}

INSTANTIATE_TEST_SUITE_P(contexts, tensor_parallel, testing::Bool(),
                         [](const auto& info) { return info.param ? "shared_context" : "separate_contexts"; });

}  // namespace
}  // namespace sycl_device_test
