// The ranks of one process share events, buffers, USM and queues. With one process per rank, each test runs with
// the process's own rank.
#include <atomic>

#include "rank_team.hpp"

namespace sycl_device_test {
namespace {

constexpr std::size_t count = 10'000;

test_rank& next_local_rank(const test_rank& self) {
  auto& members = rank_team::get().members();
  const auto own = std::find_if(members.begin(), members.end(),
                                [&](const test_rank& each) { return each.rank == self.rank; });
  return std::next(own) == members.end() ? members.front() : *std::next(own);
}
// The sum over all ranks of `first` + rank.
int sum_over_ranks(const test_rank& self, int first) {
  const int size = self.ranks.size();
  return size * first + size * (size - 1) / 2;
}
std::vector<int> read(sycl::queue queue, const int* data, const std::vector<sycl::event>& wait_events = {}) {
  std::vector<int> values(count);
  queue.memcpy(values.data(), data, count * sizeof(int), wait_events).wait();
  return values;
}

TEST(local_ranks, events_of_other_devices_order_out_of_order_queues) {
  std::vector<std::optional<sycl::event>> produced(static_cast<std::size_t>(rank_team::get().size()));
  rank_team::get().for_each_rank([&](test_rank& self) {
    sycl::queue producers = unordered_queue(self), queue = second_unordered_queue(self);
    const block<int> data(count, queue);
    producers.fill(data.data(), -1, count).wait();
    produced[static_cast<std::size_t>(self.rank)] = producers.fill(data.data(), 10 + self.rank, count);
    rank_team::get().wait_for_local_ranks();
    std::vector<sycl::event> all;
    for (const auto& event : produced)
      if (event) all.push_back(*event);
    const sycl::event sum = self.ranks.allreduce(queue, data.data(), count, isthmus::reduction_op::sum, all);
    const sycl::event doubled =
        self.ranks.allreduce(queue, data.data(), count, isthmus::reduction_op::sum, {sum});
    EXPECT_EQ(read(producers, data.data(), {doubled}),
              std::vector<int>(count, self.ranks.size() * sum_over_ranks(self, 10)));
    self.ranks.barrier(queue);
    queue.wait();
    rank_team::get().wait_for_local_ranks();
  });
}

TEST(local_ranks, a_buffer_moves_between_devices) {
  std::vector<std::unique_ptr<sycl::buffer<int>>> buffers;
  for (test_rank& self : rank_team::get().members()) {
    buffers.push_back(std::make_unique<sycl::buffer<int>>(sycl::range<1>(count)));
    const sycl::host_accessor access(*buffers.back(), sycl::write_only);
    std::fill_n(access.get_pointer(), count, -self.rank);
  }
  rank_team::get().for_each_rank([&](test_rank& self) {
    const auto index_of = [](const test_rank& rank) {
      return static_cast<std::size_t>(&rank - rank_team::get().members().data());
    };
    test_rank& other = next_local_rank(self);
    // Another device writes the buffer, this rank's device sums it, and the other device reads it.
    other.queue.submit([&](sycl::handler& handler) {
      const sycl::accessor access(*buffers[index_of(self)], handler, sycl::write_only, sycl::no_init);
      handler.fill(access, 20 + self.rank);
    });
    self.ranks.allreduce(self.queue, *buffers[index_of(self)], count);
    const block<int> host_copy(count, other.queue, sycl::usm::alloc::host);
    other.queue
        .submit([&](sycl::handler& handler) {
          const sycl::accessor access(*buffers[index_of(self)], handler, sycl::read_only);
          handler.copy(access, host_copy.data());
        })
        .wait();
    EXPECT_EQ(std::vector<int>(host_copy.data(), host_copy.data() + count),
              std::vector<int>(count, sum_over_ranks(self, 20)));
    rank_team::get().wait_for_local_ranks();
  });
}

// Each rank writes its part of one block of shared USM and sums it in place; then it reads the next part.
TEST(local_ranks, shared_usm_of_several_devices) {
  auto& members = rank_team::get().members();
  const sycl::queue& first = members.front().queue;
  for (const test_rank& self : members)
    if (self.queue.get_context() != first.get_context()) GTEST_SKIP() << "the devices are in several contexts";
  const block<int> shared(count * members.size(), first, sycl::usm::alloc::shared);
  rank_team::get().for_each_rank([&](test_rank& self) {
    const auto part_of = [&](const test_rank& rank) {
      return shared.data() + static_cast<std::size_t>(&rank - members.data()) * count;
    };
    self.queue.fill(part_of(self), 30 + self.rank, count);
    self.ranks.allreduce(self.queue, part_of(self), count).wait();
    rank_team::get().wait_for_local_ranks();
    EXPECT_EQ(read(self.queue, part_of(next_local_rank(self))),
              std::vector<int>(count, sum_over_ranks(self, 30)));
    rank_team::get().wait_for_local_ranks();
  });
}

TEST(local_ranks, a_queue_can_be_destroyed_while_its_collective_runs) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "a call on the host is complete when it returns";
  rank_team::get().for_each_rank([](test_rank& self) {
    const block<int> data(count, self.queue);
    for (const bool in_order : {true, false}) {
      self.queue.fill(data.data(), 40 + self.rank, count).wait();
      const sycl::event done = [&] {
        sycl::queue queue(
            self.queue.get_context(), self.queue.get_device(),
            in_order ? sycl::property_list{sycl::property::queue::in_order{}} : sycl::property_list{});
        return self.ranks.allreduce(queue, data.data(), count);
      }();
      EXPECT_EQ(read(self.queue, data.data(), {done}), std::vector<int>(count, sum_over_ranks(self, 40)));
    }
  });
}

#if !defined(ISTHMUS_SYCL_ADAPTIVECPP)  // which has no host tasks
TEST(local_ranks, a_failed_host_task_blocks_no_collective) {
  rank_team::get().for_each_rank([](test_rank& self) {
    std::atomic<int> exceptions = 0;
    sycl::queue queue(self.queue.get_context(), self.queue.get_device(),
                      [&](const sycl::exception_list& list) { exceptions += static_cast<int>(list.size()); });
    const block<int> data(count, self.queue);
    self.queue.fill(data.data(), 50 + self.rank, count).wait();
    const sycl::event failed = queue.submit([](sycl::handler& handler) {
      handler.host_task([] { throw std::runtime_error("a host task of the test"); });
    });
    self.ranks.allreduce(self.queue, data.data(), count, isthmus::reduction_op::sum, {failed}).wait();
    queue.wait_and_throw();
    rank_team::get().wait_for_local_ranks();  // another rank's thread may call the handler
    EXPECT_EQ(exceptions, 1);
    EXPECT_EQ(read(self.queue, data.data()), std::vector<int>(count, sum_over_ranks(self, 50)));
  });
}
#endif

}  // namespace
}  // namespace sycl_device_test
