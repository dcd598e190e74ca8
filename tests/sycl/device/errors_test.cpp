// Invalid arguments on devices: the exception describes the error, and no call hangs.
#include "rank_team.hpp"

namespace sycl_device_test {
namespace {

using sycl_test::thrown_by;

TEST(errors, invalid_calls_start_nothing) {
  rank_team::get().for_each_rank([](test_rank& self) {
    const block<int> data(10, self.queue);
    const auto root = thrown_by([&] { self.ranks.broadcast(self.queue, data.data(), 10, self.ranks.size()); });
    EXPECT_EQ(root.code(), ISTHMUS_ERROR_INVALID_ARGUMENT) << root.what();
    sycl::buffer<int, 2> buffer(sycl::range<2>(4, 5));
    const auto beyond = thrown_by([&] { self.ranks.allreduce(self.queue, isthmus::at_offset(buffer, 15), 6); });
    EXPECT_EQ(beyond.code(), ISTHMUS_ERROR_INVALID_ARGUMENT) << beyond.what();
    self.ranks.allreduce(self.queue, data.data(), 10).wait();  // the communicator stays usable
  });
}

TEST(errors, two_local_ranks_on_one_gpu_are_rejected) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "ranks may share the CPU";
  if (rank_team::may_share_device()) GTEST_SKIP() << "the option share_device allows it";
  const sycl::device device = rank_team::get().members().front().queue.get_device();
  const auto refused = thrown_by([&] {
    auto both = isthmus::communicator::create_all(std::vector{device, device}, {.timeout_s = 20});
    std::vector<sycl::queue> queues;
    isthmus::group group;
    for (auto& rank : both) {
      queues.emplace_back(device, sycl::property::queue::in_order{});
      rank.barrier(queues.back());
    }
    group.end();
  });
  EXPECT_EQ(refused.code(), ISTHMUS_ERROR_UNSUPPORTED) << refused.what();
}

TEST(errors, aborted_communicator_rejects_calls) {
  rank_team::get().for_each_rank([](test_rank& self) {
    const isthmus::communicator part = std::move(*self.ranks.split(self.rank, 0));
    const block<int> data(10, self.queue);
    self.queue.fill(data.data(), 4, 10);
    part.allreduce(self.queue, data.data(), 10).wait();
    part.abort();
    const auto refused = thrown_by([&] { part.allreduce(self.queue, data.data(), 10).wait(); });
    EXPECT_EQ(refused.code(), ISTHMUS_ERROR_ABORTED) << refused.what();
  });
}

}  // namespace
}  // namespace sycl_device_test
