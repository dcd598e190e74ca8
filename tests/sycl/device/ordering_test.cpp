// The host never waits: a kernel holds the queue until the host says go, which it does when everything behind
// the kernel has been submitted. A call that waits for it would make the kernel give up, and its data would be
// missing.
#include "kernels.hpp"

namespace sycl_device_test {
namespace {

class the_host_never_waits : public testing::Test {
 protected:
  void SetUp() override {
    if (rank_team::get().is_on_host()) GTEST_SKIP() << "on the platform host a call returns when it is complete";
    rank_team::get().each([](test_rank& self) {  // libraries connect at their first call
      const block<float> data(count, self.queue);
      self.queue.fill(data.data(), 0.0F, count);
      self.ranks.allreduce(self.queue, data.data(), count).wait();
      kernels_of(self);
    });
  }
  // Of element i, over ranks of `size`.
  static float sum(int size, std::size_t i) {
    return static_cast<float>(1000 * size * (size + 1) / 2 + size * static_cast<int>(i));
  }
  static void expect_sums(const test_rank& self, const float* seen) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += seen[i] != sum(self.ranks.size(), i);
    EXPECT_EQ(wrong, 0U) << "of " << count << ": the host waited, or the order was lost; the first is "
                         << seen[0];
  }
  // A buffer that a kernel on `producers` writes, the call and its consumer on `queue`.
  static void try_buffer(test_rank& self, sycl::queue& producers, sycl::queue& queue) {
    kernel_gate gate(queue);
    sycl::buffer<float, 1> data{sycl::range<1>(count)};
    const block<float> seen(count, queue, sycl::usm::alloc::host);
    {
      const sycl::host_accessor access(data, sycl::write_only);
      std::fill_n(access.get_pointer(), count, -1.0F);
    }
    auto raw = data.reinterpret<unsigned char, 1>(sycl::range<1>(count * sizeof(float)));
    const apps::array<float> seen_by_kernel({count * sizeof(float), raw, nullptr});
    kernels_of(self).run(producers, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(), seen_by_kernel);
    self.ranks.allreduce(queue, data, count);
    sycl::event consumed = queue.submit([&](sycl::handler& handler) {
      const sycl::accessor sums(data, handler, sycl::read_only);
      handler.copy(sums, seen.data());
    });
    gate.open();
    consumed.wait();
    expect_sums(self, seen.data());
  }
};

TEST_F(the_host_never_waits, on_an_in_order_queue) {
  rank_team::get().each([](test_rank& self) {
    kernel_gate gate(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);  // a copy to other host memory waits
    self.queue.fill(data.data(), -1.0F, count);
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    const sycl::event consumed = self.queue.memcpy(seen.data(), result.data(), count * sizeof(float));
    gate.open();
    sycl::event(consumed).wait();
    expect_sums(self, seen.data());
  });
}

TEST_F(the_host_never_waits, on_an_out_of_order_queue_with_dependencies) {
  if (rank_team::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  rank_team::get().each([](test_rank& self) {
    sycl::queue queue = unordered_queue(self), producers = second_unordered_queue(self);
    kernel_gate gate(queue);
    const block<float> data(count, queue), result(count, queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    const sycl::event cleared = queue.fill(data.data(), -1.0F, count);
    const sycl::event produced = kernels_of(self).run(producers, apps::linear_grid(count), make_waiting_kernel(self), {cleared},
                                                      gate.flag(), view(data.data(), count));
    const sycl::event summed =
        self.ranks.allreduce(queue, data.data(), result.data(), count, isthmus::reduction_op::sum, {produced});
    sycl::event consumed = queue.memcpy(seen.data(), result.data(), count * sizeof(float), summed);
    gate.open();
    consumed.wait();
    expect_sums(self, seen.data());
  });
}

TEST_F(the_host_never_waits, on_buffers) {
  rank_team::get().each([](test_rank& self) { try_buffer(self, self.queue, self.queue); });
}

TEST_F(the_host_never_waits, in_a_group) {
  rank_team::get().each([](test_rank& self) {
    kernel_gate gate(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue), other(1, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    const block<float> explanation(1, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    self.queue.fill(other.data(), static_cast<float>(self.rank + 3), 1);
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    isthmus::group both;
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    self.ranks.broadcast(self.queue, other.data(), 1, 0);
    const std::vector<sycl::event> done = both.end();
    self.queue.memcpy(explanation.data(), other.data(), sizeof(float), done.back());
    sycl::event consumed = self.queue.memcpy(seen.data(), result.data(), count * sizeof(float), done.front());
    gate.open();
    consumed.wait();
    expect_sums(self, seen.data());
    EXPECT_EQ(*explanation.data(), 3.0F);
  });
}

// DPC++'s adapter makes streams when commands come, and for a GPU that a process shares CUDA makes a new one
// only when running kernels have ended, here one that waits for the host (docs/notes: adaptivecpp).
constexpr const char* shared_device =
    "processes share the GPU, and a queue's first command may wait for kernels";

// The buffer's kernel is on another queue.
TEST_F(the_host_never_waits, on_buffers_of_another_queue) {
  if (rank_team::may_share_device()) GTEST_SKIP() << shared_device;
  if (rank_team::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  for (const bool in_order : {true, false})
    rank_team::get().each([&](test_rank& self) {
      sycl::queue producers = second_unordered_queue(self), queue = in_order ? self.queue : unordered_queue(self);
      try_buffer(self, producers, queue);
    });
}

// Two queues of one communicator: its calls keep their order.
TEST_F(the_host_never_waits, on_two_queues) {
  if (rank_team::may_share_device()) GTEST_SKIP() << shared_device;
  if (rank_team::get().members().size() > 1) GTEST_SKIP() << "several ranks of a process need in-order queues";
  rank_team::get().each([](test_rank& self) {
    kernel_gate gate(self.queue);
    sycl::queue second(self.queue.get_context(), self.queue.get_device(), sycl::property::queue::in_order{});
    const block<float> data(count, self.queue), between(count, self.queue);
    const block<float> seen(count, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    const sycl::event first = self.ranks.allreduce(self.queue, data.data(), between.data(), count);
    self.ranks.broadcast(second, between.data(), count, 0, {first});
    sycl::event consumed = second.memcpy(seen.data(), between.data(), count * sizeof(float));
    gate.open();
    consumed.wait();
    expect_sums(self, seen.data());
  });
}

}  // namespace
}  // namespace sycl_device_test
