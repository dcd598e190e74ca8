// The host never waits: a kernel holds the queue until the host says go, which it does when everything behind
// the kernel has been submitted. A call that waits for it would make the kernel give up, and its data would be
// missing.
#include <atomic>
#include <map>
#include <mutex>
#include <type_traits>

#include "crew.hpp"
#include "device_code/device_text.hpp"  // generated
#include "launcher.hpp"
// behind what it needs
#include "device_code.hpp"

namespace sycl_device_test {
namespace {

constexpr std::size_t count = 3000;
constexpr unsigned long looks = 4'000'000;  // of a microsecond or two each across the bus

// Kernels belong to a context, and each rank's queue has its own.
const apps::launcher& kernels_of(const member& self) {
  static std::map<int, apps::launcher> made;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto found = made.find(self.rank);
  if (found != made.end()) return found->second;
  return made
      .try_emplace(self.rank, self.queue, device_code::device_text,
                   std::vector{apps::source_of<device_code::hold>(), apps::source_of<device_code::multiply>()})
      .first->second;
}

template <typename T>
apps::array<T> view(T* data, std::size_t elements) {
  void* const start = const_cast<std::remove_const_t<T>*>(data);
  return apps::array<T>({elements * sizeof(T), std::nullopt, {std::shared_ptr<void>(), start}});
}

// What the host tells a kernel that holds.
class gate {
 public:
  explicit gate(const sycl::queue& queue) : m_flag(1, queue, sycl::usm::alloc::host) { *m_flag.data() = 0; }
  ~gate() { open(); }
  void open() { std::atomic_ref(*m_flag.data()).store(1); }
  apps::array<const unsigned> flag() const { return view<const unsigned>(m_flag.data(), 1); }

 private:
  block<unsigned> m_flag;
};

class the_host_never_waits : public testing::Test {
 protected:
  void SetUp() override {
    if (crew::get().on_host()) GTEST_SKIP() << "on the platform host a call returns when it is complete";
    crew::get().each([](member& self) {  // libraries connect at their first call
      const block<float> data(count, self.queue);
      self.queue.fill(data.data(), 0.0F, count);
      self.ranks.allreduce(self.queue, data.data(), count).wait();
      kernels_of(self);
    });
  }
  static device_code::hold hold_of(const member& self) {
    return {static_cast<float>(1000 * (self.rank + 1)), looks};
  }
  // Of element i, over ranks of `size`.
  static float sum(int size, std::size_t i) {
    return static_cast<float>(1000 * size * (size + 1) / 2 + size * static_cast<int>(i));
  }
  static void expect_sums(const member& self, const float* seen) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += seen[i] != sum(self.ranks.size(), i);
    EXPECT_EQ(wrong, 0U) << "of " << count << ": the host waited, or the order was lost; the first is "
                         << seen[0];
  }
  // A buffer that a kernel on `producers` writes, the call and its consumer on `queue`.
  static void try_buffer(member& self, sycl::queue& producers, sycl::queue& queue) {
    gate go(queue);
    sycl::buffer<float, 1> data{sycl::range<1>(count)};
    const block<float> seen(count, queue, sycl::usm::alloc::host);
    {
      const sycl::host_accessor access(data, sycl::write_only);
      std::fill_n(access.get_pointer(), count, -1.0F);
    }
    auto raw = data.reinterpret<unsigned char, 1>(sycl::range<1>(count * sizeof(float)));
    const apps::array<float> seen_by_kernel({count * sizeof(float), raw, nullptr});
    kernels_of(self).run(producers, apps::cover(count), hold_of(self), {}, go.flag(), seen_by_kernel);
    self.ranks.allreduce(queue, data, count);
    sycl::event consumed = queue.submit([&](sycl::handler& handler) {
      const sycl::accessor sums(data, handler, sycl::read_only);
      handler.copy(sums, seen.data());
    });
    go.open();
    consumed.wait();
    expect_sums(self, seen.data());
  }
};

TEST_F(the_host_never_waits, on_an_in_order_queue) {
  crew::get().each([](member& self) {
    gate go(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);  // a copy to other host memory waits
    self.queue.fill(data.data(), -1.0F, count);
    kernels_of(self).run(self.queue, apps::cover(count), hold_of(self), {}, go.flag(),
                         view(data.data(), count));
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    const sycl::event consumed = self.queue.memcpy(seen.data(), result.data(), count * sizeof(float));
    go.open();
    sycl::event(consumed).wait();
    expect_sums(self, seen.data());
  });
}

TEST_F(the_host_never_waits, on_an_out_of_order_queue_with_dependencies) {
  if (crew::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  crew::get().each([](member& self) {
    sycl::queue queue = unordered(self), producers = unordered(self);
    gate go(queue);
    const block<float> data(count, queue), result(count, queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    const sycl::event cleared = queue.fill(data.data(), -1.0F, count);
    const sycl::event produced = kernels_of(self).run(producers, apps::cover(count), hold_of(self), {cleared},
                                                      go.flag(), view(data.data(), count));
    const sycl::event summed =
        self.ranks.allreduce(queue, data.data(), result.data(), count, isthmus::reduction_op::sum, {produced});
    sycl::event consumed = queue.memcpy(seen.data(), result.data(), count * sizeof(float), summed);
    go.open();
    consumed.wait();
    expect_sums(self, seen.data());
  });
}

TEST_F(the_host_never_waits, on_buffers) {
  crew::get().each([](member& self) { try_buffer(self, self.queue, self.queue); });
}

TEST_F(the_host_never_waits, in_a_group) {
  crew::get().each([](member& self) {
    gate go(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue), other(1, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    const block<float> told(1, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    self.queue.fill(other.data(), static_cast<float>(self.rank + 3), 1);
    kernels_of(self).run(self.queue, apps::cover(count), hold_of(self), {}, go.flag(),
                         view(data.data(), count));
    isthmus::group both;
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    self.ranks.broadcast(self.queue, other.data(), 1, 0);
    const std::vector<sycl::event> done = both.end();
    self.queue.memcpy(told.data(), other.data(), sizeof(float), done.back());
    sycl::event consumed = self.queue.memcpy(seen.data(), result.data(), count * sizeof(float), done.front());
    go.open();
    consumed.wait();
    expect_sums(self, seen.data());
    EXPECT_EQ(*told.data(), 3.0F);
  });
}

// The buffer's kernel is on another queue.
TEST_F(the_host_never_waits, on_buffers_of_another_queue) {
  if (crew::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  for (const bool in_order : {true, false})
    crew::get().each([&](member& self) {
      sycl::queue producers = unordered(self), queue = in_order ? self.queue : unordered(self);
      try_buffer(self, producers, queue);
    });
}

// Two queues of one communicator: its calls keep their order.
TEST_F(the_host_never_waits, on_two_queues) {
  if (crew::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  crew::get().each([](member& self) {
    gate go(self.queue);
    sycl::queue second(self.queue.get_context(), self.queue.get_device(), sycl::property::queue::in_order{});
    const block<float> data(count, self.queue), between(count, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    kernels_of(self).run(self.queue, apps::cover(count), hold_of(self), {}, go.flag(),
                         view(data.data(), count));
    const sycl::event first = self.ranks.allreduce(self.queue, data.data(), between.data(), count);
    self.ranks.broadcast(second, between.data(), count, 0, {first});
    sycl::event consumed = second.memcpy(seen.data(), between.data(), count * sizeof(float));
    go.open();
    consumed.wait();
    expect_sums(self, seen.data());
  });
}

// ---- products beside transfers ----------------------------------------------------------------------------

// A's rows and B of every rank are small integers, so that the sums are exact in any order.
TEST(fused, allgather_gemm_with_kernels_as_products) {
  if (crew::get().on_host()) GTEST_SKIP() << "fused_test.cpp does it there, without kernels";
  constexpr std::uint64_t rows = 37, inner = 19, columns = 11;
  crew::get().each([](member& self) {
    const auto size = static_cast<std::uint64_t>(self.ranks.size());
    std::vector<float> a(size * rows * inner), b(inner * columns), c(size * rows * columns);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7 % 13) - 6;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>((i + self.rank) * 5 % 11) - 5;
    sycl::queue products = unordered(self);
    const block<float> own(rows * inner, products), gathered(a.size(), products), weights(b.size(), products),
        result(c.size(), products);
    products.memcpy(weights.data(), b.data(), b.size() * sizeof(float)).wait();
    products.fill(result.data(), -1.0F, c.size()).wait();
    const std::uint64_t begin = static_cast<std::uint64_t>(self.rank) * rows * inner;
    const sycl::event produced = products.memcpy(own.data(), a.data() + begin, rows * inner * sizeof(float));
    const isthmus::row_shards shards(self.ranks, self.queue, rows, inner, 3);
    const auto product = [&](const float* from, std::uint64_t first, std::uint64_t n,
                             const isthmus::dependencies& after) {
      return kernels_of(self).run(products, {n, columns, 1, 64}, device_code::multiply{inner, columns}, after,
                                  view(from, n * inner), view<const float>(weights.data(), b.size()),
                                  view(result.data() + first * columns, n * columns));
    };
    for (sycl::event each : isthmus::allgather_gemm(self.ranks, self.queue, own.data(), gathered.data(), shards,
                                                    product, {produced}))
      each.wait();
    products.memcpy(c.data(), result.data(), c.size() * sizeof(float)).wait();
    std::size_t wrong = 0;
    for (std::uint64_t row = 0; row < size * rows; ++row)
      for (std::uint64_t column = 0; column < columns; ++column) {
        float sum = 0;
        for (std::uint64_t i = 0; i < inner; ++i) sum += a[row * inner + i] * b[i * columns + column];
        wrong += c[row * columns + column] != sum;
      }
    EXPECT_EQ(wrong, 0U);
  });
}

}  // namespace
}  // namespace sycl_device_test
