// fused.hpp with products by kernels and by the vendor's library, and tensor_parallel.hpp, on devices.
#include <isthmus/sycl/tensor_parallel.hpp>

#include "blas_product.hpp"
#include "kernels.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace sycl_device_test {
namespace {

// ---- products that overlap with transfers -----------------------------------------------------------------

constexpr std::uint64_t rows = 37, inner = 19, columns = 11;

// Small integers, so that the sums are exact in any order.
float entry_of_a(std::size_t i) { return static_cast<float>(i * 7 % 13) - 6; }
float entry_of_b(int rank, std::size_t i) {
  return static_cast<float>((i + static_cast<std::size_t>(rank)) * 5 % 11) - 5;
}

// Counts the wrong elements of the product of `all_rows` rows of A and this rank's B; every rank has
// a different B.
std::uint64_t count_wrong(const std::vector<float>& c, std::uint64_t all_rows, int rank) {
  std::uint64_t wrong = 0;
  for (std::uint64_t row = 0; row < all_rows; ++row)
    for (std::uint64_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::uint64_t i = 0; i < inner; ++i)
        sum += entry_of_a(row * inner + i) * entry_of_b(rank, i * columns + column);
      wrong += c[row * columns + column] != sum;
    }
  return wrong;
}

// Runs one allgather_gemm. `multiply(queue, a, rows, b, c, after)` is the product on `queue`, which is
// out of order.
template <typename Multiply>
void gather_and_multiply(test_rank& self, const Multiply& multiply) {
  const auto size = static_cast<std::uint64_t>(self.ranks.size());
  std::vector<float> a(size * rows * inner), b(inner * columns), c(size * rows * columns);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = entry_of_a(i);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = entry_of_b(self.rank, i);
  sycl::queue products = unordered_queue(self);
  const block<float> own(rows * inner, products), gathered(a.size(), products), weights(b.size(), products),
      result(c.size(), products);
  products.memcpy(weights.data(), b.data(), b.size() * sizeof(float)).wait();
  products.fill(result.data(), -1.0F, c.size()).wait();
  const std::uint64_t begin = static_cast<std::uint64_t>(self.rank) * rows * inner;
  const sycl::event produce_event = products.memcpy(own.data(), a.data() + begin, rows * inner * sizeof(float));
  const isthmus::row_shards shards(self.ranks, self.queue, rows, inner, 3);
  const auto product = [&](const float* from, std::uint64_t first, std::uint64_t n,
                           const isthmus::dependencies& wait_events) {
    return multiply(products, from, n, weights.data(), result.data() + first * columns, wait_events);
  };
  for (sycl::event event : isthmus::allgather_gemm(self.ranks, self.queue, own.data(), gathered.data(), shards,
                                                   product, {produce_event}))
    event.wait();
  products.memcpy(c.data(), result.data(), c.size() * sizeof(float)).wait();
  EXPECT_EQ(count_wrong(c, size * rows, self.rank), 0U);
}

TEST(fused, allgather_gemm_with_kernels) {
  if (rank_team::get().is_on_host())
    GTEST_SKIP() << "tests/sycl/fused_test.cpp covers the host, without kernels";
  rank_team::get().for_each_rank([](test_rank& self) {
    gather_and_multiply(self, [&](sycl::queue& queue, const float* a, std::uint64_t n, const float* b, float* c,
                                  const isthmus::dependencies& wait_events) {
      return kernels_of(self).run(queue, {n, columns, 1, 64}, device_code::multiply{inner, columns},
                                  wait_events, view(a, n * inner), view(b, inner * columns),
                                  view(c, n * columns));
    });
  });
}

TEST(fused, allgather_gemm_with_vendor_library) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "the host has no vendor library";
  rank_team::get().for_each_rank([](test_rank& self) {
    blas_product product(self.ranks.platform(), inner, columns);
    gather_and_multiply(self, [&](sycl::queue& queue, const float* a, std::uint64_t n, const float* b, float* c,
                                  const isthmus::dependencies& wait_events) {
      return product.enqueue(queue, a, n, b, c, wait_events);
    });
  });
}

// Every rank multiplies its columns of A. Here all ranks have the same ones, so the sum is a multiple
// of the product.
TEST(fused, gemm_reduce_scatter_with_vendor_library) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "the host has no vendor library";
  rank_team::get().for_each_rank([](test_rank& self) {
    const auto size = static_cast<std::uint64_t>(self.ranks.size());
    std::vector<float> a(size * rows * inner), b(inner * columns), c(rows * columns);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = entry_of_a(i);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = entry_of_b(0, i);
    sycl::queue products = unordered_queue(self);
    const block<float> left(a.size(), products), right(b.size(), products), result(c.size(), products),
        partial(size * rows * columns, products);
    const sycl::event sent = products.memcpy(left.data(), a.data(), a.size() * sizeof(float));
    products.memcpy(right.data(), b.data(), b.size() * sizeof(float)).wait();
    blas_product product(self.ranks.platform(), inner, columns);
    const isthmus::row_shards shards(self.ranks, self.queue, rows, columns, 2);
    const auto multiply = [&](std::uint64_t first, std::uint64_t n, float* to,
                              const isthmus::dependencies& wait_events) {
      return product.enqueue(products, left.data() + first * inner, n, right.data(), to, wait_events);
    };
    for (sycl::event event : isthmus::gemm_reduce_scatter(self.ranks, self.queue, partial.data(), result.data(),
                                                          shards, multiply, {sent}))
      event.wait();
    products.memcpy(c.data(), result.data(), c.size() * sizeof(float)).wait();
    std::uint64_t wrong = 0;
    for (std::uint64_t row = 0; row < rows; ++row)
      for (std::uint64_t column = 0; column < columns; ++column) {
        float sum = 0;
        for (std::uint64_t i = 0; i < inner; ++i)
          sum += entry_of_a((static_cast<std::uint64_t>(self.rank) * rows + row) * inner + i) *
                 entry_of_b(0, i * columns + column);
        wrong += c[row * columns + column] != sum * static_cast<float>(size);
      }
    EXPECT_EQ(wrong, 0U);
  });
}

// ---- sums for tensor parallelism --------------------------------------------------------------------------

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
