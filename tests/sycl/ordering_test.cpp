// Operations run after their dependencies and before their dependents. Producers are slow on purpose.
#include <chrono>
#include <cmath>
#include <future>

#include "fixture.hpp"

namespace sycl_test {

using ordering = ranks_of_one_process;
using namespace std::chrono_literals;

// Writes `values` after a delay.
void produce_slowly(sycl::handler& handler, int* target, const std::vector<int>& values) {
  host_task(handler, [=] {
    std::this_thread::sleep_for(50ms);
    std::copy(values.begin(), values.end(), target);
  });
}

TEST_F(ordering, in_order_queue_orders_operations) {
  const auto fresh = random_ints(capacity, 77);
  in_threads([&](std::size_t r) {
    queues[r].submit([&](sycl::handler& handler) { produce_slowly(handler, send[r], fresh); });
    comms[r].allreduce(queues[r], send[r], recv[r], capacity, isthmus::reduction_op::max);
    queues[r].submit([&](sycl::handler& handler) {
      int* result = recv[r];
      host_task(handler, [=] {
        for (std::size_t i = 0; i < capacity; ++i) result[i] = result[i] / 2;
      });
    });
    queues[r].wait();
  });
  for (std::size_t i = 0; i < capacity; ++i) ASSERT_EQ(recv[1][i], fresh[i] / 2);
}

TEST_F(ordering, events_order_operations) {
  const auto fresh = random_ints(capacity, 78);
  in_threads([&](std::size_t r) {
    sycl::queue queue = persistent_queue(comms[r].device());
    const sycl::event produce_event =
        queue.submit([&](sycl::handler& handler) { produce_slowly(handler, send[r], fresh); });
    const sycl::event reduced =
        comms[r].allreduce(queue, send[r], recv[r], capacity, isthmus::reduction_op::min, {produce_event});
    queue.submit([&](sycl::handler& handler) {
      handler.depends_on(reduced);
      int* result = recv[r];
      host_task(handler, [=] { result[0] = result[1]; });
    });
    queue.wait();
  });
  for (std::size_t i = 1; i < capacity; ++i) ASSERT_EQ(recv[0][i], fresh[i]);
  EXPECT_EQ(recv[0][0], fresh[1]);
}

TEST_F(ordering, buffer_accesses_order_operations) {
  const auto fresh = random_ints(100, 79);
  std::vector<sycl::buffer<int, 1>> buffers(size, sycl::buffer<int, 1>(sycl::range<1>(1)));
  for (auto& buffer : buffers) buffer = sycl::buffer<int, 1>(sycl::range<1>(100));
  isthmus::group group;
  for (std::size_t r = 0; r < size; ++r) {
    sycl::queue queue = persistent_queue(comms[r].device());
    queue.submit([&](sycl::handler& handler) {
      const host_task_accessor<int> data(buffers[r], handler);
      host_task(handler, [=] {
        std::this_thread::sleep_for(30ms);
        for (std::size_t i = 0; i < 100; ++i) data[i] = fresh[i];
      });
    });
    comms[r].allreduce(queue, buffers[r], 100, isthmus::reduction_op::max);
  }
  group.end();
  for (auto& buffer : buffers) {
    const sycl::host_accessor result(buffer, sycl::read_only);
    for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(result[i], fresh[i]);
  }
}

// One rank, so that the host task path can run in this process.
class host_task_path : public testing::Test {
 protected:
  sycl::device device{sycl::cpu_selector_v};
  isthmus::communicator make() {
    return {
        device, isthmus::make_unique_id(), 0, 1, {.timeout_s = 20, .host = isthmus::host_execution::host_task}};
  }
  std::vector<int> from = random_ints(100, 9), to = std::vector<int>(100, poison);
};

TEST_F(host_task_path, call_does_not_block) {
  const isthmus::communicator ranks = make();
  EXPECT_EQ(ranks.path(), isthmus::enqueue_path::host_task);
  sycl::queue queue(device);
  std::promise<void> returned;
  std::future_status wait_status{};
  const sycl::event slow = queue.submit([&](sycl::handler& handler) {
    host_task(handler, [&] { wait_status = returned.get_future().wait_for(20s); });
  });
  const sycl::event done =
      ranks.allreduce(queue, from.data(), to.data(), 100, isthmus::reduction_op::sum, {slow});
  returned.set_value();
  sycl::event(done).wait();
  EXPECT_EQ(wait_status, std::future_status::ready) << "the host must not wait";
  EXPECT_EQ(to, from);
}

TEST_F(host_task_path, allreduce_rmsnorm_does_not_block) {
  const isthmus::communicator ranks = make();
  sycl::queue queue(device);
  std::promise<void> returned;
  std::future_status wait_status{};
  std::vector<float> input = {0, 0}, residual = {1, 2}, weight = {1, 2}, sum(2), normalized(2);
  const sycl::event slow = queue.submit([&](sycl::handler& handler) {
    host_task(handler, [&] {
      wait_status = returned.get_future().wait_for(20s);
      input = {2, 2};
    });
  });
  isthmus_allreduce_rmsnorm_arguments arguments{};
  arguments.struct_bytes = sizeof arguments;
  arguments.tokens = 1, arguments.hidden = 2;
  arguments.datatype = arguments.output = ISTHMUS_FLOAT32;
  arguments.input = input.data(), arguments.residual = residual.data(), arguments.weight = weight.data();
  arguments.residual_out = sum.data(), arguments.normalized = normalized.data();
  const sycl::event done = ranks.allreduce_rmsnorm(queue, arguments, {slow});
  arguments = {};  // was copied
  returned.set_value();
  sycl::event(done).wait();
  EXPECT_EQ(wait_status, std::future_status::ready) << "the host must not wait";
  EXPECT_EQ(sum, (std::vector<float>{3, 4}));
  EXPECT_NEAR(normalized[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(normalized[1], 8 / std::sqrt(12.5), 1e-6);
}

TEST_F(host_task_path, group_does_not_block) {
  const isthmus::communicator ranks = make();
  sycl::queue queue(device, sycl::property::queue::in_order{});
  std::promise<void> returned;
  std::future_status wait_status{};
  queue.submit([&](sycl::handler& handler) {
    host_task(handler, [&] {
      wait_status = returned.get_future().wait_for(20s);
      from[0] = 12345;
    });
  });
  isthmus::group group;
  ranks.send(queue, from.data(), 60, 0);
  ranks.send(queue, from.data() + 60, 40, 0);
  ranks.recv(queue, to.data(), 60, 0);
  ranks.recv(queue, to.data() + 60, 40, 0);
  std::vector<sycl::event> done = group.end();
  returned.set_value();
  ASSERT_EQ(done.size(), 4U);
  done.back().wait();
  EXPECT_EQ(wait_status, std::future_status::ready) << "the host must not wait";
  EXPECT_EQ(to[0], 12345) << "the operation must run after earlier work of the queue";
  EXPECT_EQ(to, from);
}

// An in-order queue keeps its own order; the communicator keeps the order between two queues.
TEST_F(host_task_path, calls_are_ordered_across_queues) {
  const isthmus::communicator ranks = make();
  const sycl::property_list in_order{sycl::property::queue::in_order()};
  sycl::queue first(device, in_order), second(device, in_order);
  std::vector<int> intermediate(100, poison), back(100, poison);
  first.submit([&](sycl::handler& handler) { host_task(handler, [] { std::this_thread::sleep_for(100ms); }); });
  ranks.allreduce(first, from.data(), intermediate.data(), 100, isthmus::reduction_op::sum);
  ranks.allreduce(second, intermediate.data(), to.data(), 100, isthmus::reduction_op::sum);
  ranks.allreduce(second, to.data(), back.data(), 100, isthmus::reduction_op::sum).wait();
  EXPECT_EQ(to, from);
  EXPECT_EQ(back, from);
  first.wait();
}

// AdaptiveCpp defers work until a thread waits for it, and only the communicator's destructor does so here.
TEST_F(host_task_path, destructor_waits_for_operations) {
  sycl::queue queue(device);
  {
    const isthmus::communicator ranks = make();
    ranks.allreduce(queue, from.data(), to.data(), 100);
  }
  EXPECT_EQ(to, from);
  queue.wait();
}

TEST_F(host_task_path, buffers_are_supported) {
  const isthmus::communicator ranks = make();
  sycl::queue queue(device);
  sycl::buffer<int, 1> source(from.begin(), from.end()), target(sycl::range<1>(100));
  ranks.allreduce(queue, source, target, 100);
  const sycl::host_accessor result(target, sycl::read_only);
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(result[i], from[i]);
}

TEST_F(host_task_path, async_error_returns_failure) {
  int handled = 0;
  const isthmus::communicator ranks = make();
  sycl::queue queue(
      device, [&](const sycl::exception_list& failures) { handled += static_cast<int>(failures.size()); });
  EXPECT_FALSE(ranks.async_error().has_value());
  ranks.abort();
  ranks.allreduce(queue, from.data(), to.data(), 100).wait();
  queue.wait_and_throw();
  EXPECT_EQ(handled, 1);
  ASSERT_TRUE(ranks.async_error().has_value());
  EXPECT_EQ(ranks.async_error()->code(), ISTHMUS_ERROR_ABORTED);
  EXPECT_EQ(to[0], poison);
}

}  // namespace sycl_test
