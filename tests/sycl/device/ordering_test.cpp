// The host must never wait: a kernel waits until the host opens a gate, which it does after submitting all
// later work. A call that waits for the kernel would make the kernel stop, and its data would be missing.
#include "kernels.hpp"

namespace sycl_device_test {
namespace {

class host_does_not_wait : public testing::Test {
 protected:
  void SetUp() override {
    if (rank_team::get().is_on_host())
      GTEST_SKIP() << "on the host platform a call returns when it is complete";
    rank_team::get().for_each_rank([](test_rank& self) {  // libraries connect during the first call
      const block<float> data(count, self.queue);
      self.queue.fill(data.data(), 0.0F, count);
      self.ranks.allreduce(self.queue, data.data(), count).wait();
      kernels_of(self);
    });
  }
  // The sum of element i over `size` ranks.
  static float sum(int size, std::size_t i) {
    return static_cast<float>(1000 * size * (size + 1) / 2 + size * static_cast<int>(i));
  }
  static void expect_sums(const test_rank& self, const float* values) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += values[i] != sum(self.ranks.size(), i);
    EXPECT_EQ(wrong, 0U) << "of " << count << ": the host waited, or the order was lost; the first is "
                         << values[0];
  }
  // Tests a buffer that a kernel on `producers` writes, with the call and its consumer on `queue`.
  static void try_buffer(test_rank& self, sycl::queue& producers, sycl::queue& queue) {
    kernel_gate gate(queue);
    sycl::buffer<float, 1> data{sycl::range<1>(count)};
    const block<float> host_copy(count, queue, sycl::usm::alloc::host);
    {
      const sycl::host_accessor access(data, sycl::write_only);
      std::fill_n(access.get_pointer(), count, -1.0F);
    }
    auto raw = data.reinterpret<unsigned char, 1>(sycl::range<1>(count * sizeof(float)));
    const apps::array<float> seen_by_kernel({count * sizeof(float), raw, nullptr});
    rank_team::get().wait_for_local_ranks();
    kernels_of(self).run(producers, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         seen_by_kernel);
    self.ranks.allreduce(queue, data, count);
    sycl::event consumed = queue.submit([&](sycl::handler& handler) {
      const sycl::accessor sums(data, handler, sycl::read_only);
      handler.copy(sums, host_copy.data());
    });
    gate.open();
    consumed.wait();
    rank_team::get().wait_for_local_ranks();
    expect_sums(self, host_copy.data());
  }
};

TEST_F(host_does_not_wait, in_order_queue) {
  rank_team::get().for_each_rank([](test_rank& self) {
    kernel_gate gate(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue);
    const block<float> host_copy(count, self.queue,
                                 sycl::usm::alloc::host);  // a copy to pageable host memory would wait
    self.queue.fill(data.data(), -1.0F, count);
    rank_team::get().wait_for_local_ranks();
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    const sycl::event consumed = self.queue.memcpy(host_copy.data(), result.data(), count * sizeof(float));
    gate.open();
    sycl::event(consumed).wait();
    rank_team::get().wait_for_local_ranks();
    expect_sums(self, host_copy.data());
  });
}

TEST_F(host_does_not_wait, out_of_order_queue_with_events) {
  rank_team::get().for_each_rank([](test_rank& self) {
    sycl::queue queue = unordered_queue(self), producers = second_unordered_queue(self);
    kernel_gate gate(queue);
    const block<float> data(count, queue), result(count, queue);
    const block<float> host_copy(count, self.queue, sycl::usm::alloc::host);
    const sycl::event clear_event = queue.fill(data.data(), -1.0F, count);
    rank_team::get().wait_for_local_ranks();
    const sycl::event produce_event =
        kernels_of(self).run(producers, apps::linear_grid(count), make_waiting_kernel(self), {clear_event},
                             gate.flag(), view(data.data(), count));
    const sycl::event sum_event = self.ranks.allreduce(queue, data.data(), result.data(), count,
                                                       isthmus::reduction_op::sum, {produce_event});
    sycl::event consumed = queue.memcpy(host_copy.data(), result.data(), count * sizeof(float), sum_event);
    gate.open();
    consumed.wait();
    rank_team::get().wait_for_local_ranks();
    expect_sums(self, host_copy.data());
  });
}

TEST_F(host_does_not_wait, buffers) {
  rank_team::get().for_each_rank([](test_rank& self) { try_buffer(self, self.queue, self.queue); });
}

TEST_F(host_does_not_wait, group) {
  rank_team::get().for_each_rank([](test_rank& self) {
    kernel_gate gate(self.queue);
    const block<float> data(count, self.queue), result(count, self.queue), other(1, self.queue);
    const block<float> host_copy(count, self.queue, sycl::usm::alloc::host);
    const block<float> explanation(1, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    self.queue.fill(other.data(), static_cast<float>(self.rank + 3), 1);
    rank_team::get().wait_for_local_ranks();
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    isthmus::group both;
    self.ranks.allreduce(self.queue, data.data(), result.data(), count);
    self.ranks.broadcast(self.queue, other.data(), 1, 0);
    const std::vector<sycl::event> done = both.end();
    self.queue.memcpy(explanation.data(), other.data(), sizeof(float), done.back());
    sycl::event consumed =
        self.queue.memcpy(host_copy.data(), result.data(), count * sizeof(float), done.front());
    gate.open();
    consumed.wait();
    rank_team::get().wait_for_local_ranks();
    expect_sums(self, host_copy.data());
    EXPECT_EQ(*explanation.data(), 3.0F);
  });
}

// DPC++'s adapter creates streams when commands are submitted. On a GPU that processes share, CUDA creates a
// new stream only after running kernels have ended, and here one waits for the host.
constexpr const char* shared_device =
    "processes share the GPU, so a queue's first command may wait for kernels";

// The kernel that writes the buffer is on another queue.
TEST_F(host_does_not_wait, buffers_of_another_queue) {
  if (rank_team::may_share_device()) GTEST_SKIP() << shared_device;
  for (const bool in_order : {true, false})
    rank_team::get().for_each_rank([&](test_rank& self) {
      sycl::queue producers = second_unordered_queue(self),
                  queue = in_order ? self.queue : unordered_queue(self);
      try_buffer(self, producers, queue);
    });
}

// The calls of one communicator on two queues keep their order.
TEST_F(host_does_not_wait, two_queues) {
  if (rank_team::may_share_device()) GTEST_SKIP() << shared_device;
  rank_team::get().for_each_rank([](test_rank& self) {
    kernel_gate gate(self.queue);
    sycl::queue second(self.queue.get_context(), self.queue.get_device(), sycl::property::queue::in_order{});
    const block<float> data(count, self.queue), intermediate(count, self.queue);
    const block<float> host_copy(count, self.queue, sycl::usm::alloc::host);
    self.queue.fill(data.data(), -1.0F, count);
    second.fill(intermediate.data(), -1.0F, count).wait();  // creates its stream
    rank_team::get().wait_for_local_ranks();
    kernels_of(self).run(self.queue, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                         view(data.data(), count));
    const sycl::event first = self.ranks.allreduce(self.queue, data.data(), intermediate.data(), count);
    self.ranks.broadcast(second, intermediate.data(), count, 0, {first});
    sycl::event consumed = second.memcpy(host_copy.data(), intermediate.data(), count * sizeof(float));
    gate.open();
    consumed.wait();
    rank_team::get().wait_for_local_ranks();
    expect_sums(self, host_copy.data());
  });
}

}  // namespace
}  // namespace sycl_device_test
