// Bad input: an exception that names argument, value and rule; nothing written, nothing hangs.
#include <chrono>

#include "fixture.hpp"

namespace sycl_test {

using errors = ranks_of_one_process;

TEST_F(errors, offset_and_count_beyond_the_buffer) {
  sycl::buffer<int, 2> buffer(sycl::range<2>(4, 5));
  const auto failure = thrown_by([&] { comms[0].broadcast(queues[0], isthmus::at_offset(buffer, 15), 6, 0); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(failure.collective(), ISTHMUS_BROADCAST);
  EXPECT_EQ(failure.rank(), 0);
  EXPECT_NE(failure.message().find("offset 60 bytes + 6 elements"), std::string::npos) << failure.what();
  EXPECT_NE(failure.message().find("80 bytes"), std::string::npos) << failure.what();
  EXPECT_FALSE(failure.hint().empty());
  EXPECT_FALSE(failure.location().empty());
  thrown_by([&] { comms[0].broadcast(queues[0], isthmus::at_offset(buffer, 21), 0, 0); });
}

TEST_F(errors, block_collectives_count_all_blocks) {
  sycl::buffer<int, 1> small(sycl::range<1>(15)), ten(sycl::range<1>(10));
  const auto failure = thrown_by([&] { comms[0].allgather(queues[0], ten, small, 10); });
  EXPECT_NE(failure.message().find("receive buffer"), std::string::npos) << failure.what();
}

TEST_F(errors, queue_of_another_device) {
  if (m_devices[0] == m_devices[1]) GTEST_SKIP() << "the CPU has one compute unit";
  const auto failure = thrown_by([&] { comms[0].allreduce(queues[1], send[0], recv[0], 1); });
  EXPECT_NE(failure.message().find("queue is on device"), std::string::npos) << failure.what();
  EXPECT_EQ(recv[0][0], poison);
}

TEST_F(errors, different_explicit_datatypes) {
  const auto failure = thrown_by([&] {
    comms[0].allreduce(queues[0], isthmus::as_datatype(isthmus::datatype::float32, send[0]),
                       isthmus::as_datatype(isthmus::datatype::int32, recv[0]), 1);
  });
  EXPECT_NE(failure.message().find("float32 and int32"), std::string::npos) << failure.what();
}

TEST_F(errors, counts_for_every_rank) {
  const std::vector<std::uint64_t> one = {1};
  const auto failure = thrown_by([&] { comms[0].allgatherv(queues[0], send[0], 1, recv[0], one, one); });
  EXPECT_NE(failure.message().find("recv_counts has 1 entries"), std::string::npos) << failure.what();
}

TEST_F(errors, wrong_root_comes_from_the_core) {
  const auto failure = thrown_by([&] { comms[0].broadcast(queues[0], recv[0], 1, 7); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(failure.ranks().empty());
  EXPECT_NE(failure.message().find("root"), std::string::npos) << failure.what();
  EXPECT_EQ(recv[0][0], poison);
}

#if !defined(ISTHMUS_SYCL_ADAPTIVECPP)  // it has no sub-buffers
TEST_F(errors, two_sub_buffers_of_one_buffer) {
  sycl::buffer<int, 1> whole(sycl::range<1>(1024));
  sycl::buffer<int, 1> low(whole, sycl::id<1>(0), sycl::range<1>(512));
  sycl::buffer<int, 1> high(whole, sycl::id<1>(512), sycl::range<1>(512));
  const auto failure = thrown_by([&] { comms[0].allreduce(queues[0], low, high, 512); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_UNSUPPORTED) << failure.what();
}
#endif

TEST_F(errors, moved_from_communicator) {
  const isthmus::communicator taken = std::move(comms[0]);
  const auto failure = thrown_by([&] { comms[0].barrier(queues[0]); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_USAGE);
}

TEST_F(errors, an_exception_in_a_group_starts_nothing) {
  thrown_by([&] {
    const isthmus::group group;
    comms[0].allreduce(queues[0], send[0], recv[0], 10);
    comms[1].broadcast(queues[1], isthmus::at_offset(sycl::buffer<int, 1>(sycl::range<1>(1)), 2), 1, 0);
  });
  EXPECT_EQ(recv[0][0], poison);
  isthmus::group again;  // the thread's group is in order again
  for (std::size_t r = 0; r < size; ++r) comms[r].allreduce(queues[r], send[r], recv[r], 10);
  again.end();
  EXPECT_EQ(recv[1][9], sum(9));
}

TEST_F(errors, an_invalid_operation_keeps_its_group_from_starting) {
  isthmus::group group;
  comms[0].allreduce(queues[0], send[0], recv[0], 10);
  comms[1].allreduce(queues[1], static_cast<int*>(nullptr), recv[1], 10);
  thrown_by([&] { group.end(); });
  EXPECT_EQ(recv[0][0], poison);
}

TEST(lonely_rank, gets_a_timeout_and_not_a_hang) {
  auto comms = isthmus::communicator::create_all(devices(2), {.timeout_s = 1});
  sycl::queue queue = persistent_queue(comms[0].device());
  int mine = 1, result = poison;
  const auto before = std::chrono::steady_clock::now();
  const auto failure = thrown_by([&] { comms[0].allreduce(queue, &mine, &result, 1); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10));
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_TIMEOUT) << failure.what();
  EXPECT_NE(failure.message().find('1'), std::string::npos) << failure.what();
  EXPECT_EQ(failure.ranks(), std::vector{1});
  const auto later =  // of the same thread, and due to nobody
      thrown_by([] { isthmus::communicator::create_all(devices(1), {.config = "no/such/file.toml"}); });
  EXPECT_TRUE(later.ranks().empty()) << later.what();
  EXPECT_EQ(failure.ranks(), std::vector{1}) << "it keeps its own";
  EXPECT_EQ(thrown_by([&] { comms[0].barrier(queue); }).code(), ISTHMUS_ERROR_ABORTED);
}

TEST(host_task_rule, needs_one_rank_in_the_process) {
  const auto failure =
      thrown_by([] { isthmus::communicator::create_all(devices(2), {.host = isthmus::host_execution::host_task}); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(configuration, of_a_missing_file_names_it) {
  const auto failure =
      thrown_by([] { isthmus::communicator::create_all(devices(1), {.config = "no/such/file.toml"}); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(std::string(failure.what()).find("no/such/file.toml"), std::string::npos) << failure.what();
}

}  // namespace sycl_test
