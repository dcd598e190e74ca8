// Invalid arguments: the exception names argument, value and rule, nothing is written, and no call hangs.
#include <chrono>

#include "fixture.hpp"

namespace sycl_test {

using errors = ranks_of_one_process;

TEST_F(errors, range_beyond_buffer_is_rejected) {
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

TEST_F(errors, block_collectives_check_all_blocks) {
  sycl::buffer<int, 1> small(sycl::range<1>(15)), ten_elements(sycl::range<1>(10));
  const auto failure = thrown_by([&] { comms[0].allgather(queues[0], ten_elements, small, 10); });
  EXPECT_NE(failure.message().find("receive buffer"), std::string::npos) << failure.what();
}

TEST_F(errors, queue_of_other_device_is_rejected) {
  if (m_devices[0] == m_devices[1]) GTEST_SKIP() << "the CPU has one compute unit";
  const auto failure = thrown_by([&] { comms[0].allreduce(queues[1], send[0], recv[0], 1); });
  EXPECT_NE(failure.message().find("queue is on device"), std::string::npos) << failure.what();
  EXPECT_EQ(recv[0][0], poison);
}

TEST_F(errors, different_datatypes_are_rejected) {
  const auto failure = thrown_by([&] {
    comms[0].allreduce(queues[0], isthmus::as_datatype(isthmus::datatype::float32, send[0]),
                       isthmus::as_datatype(isthmus::datatype::int32, recv[0]), 1);
  });
  EXPECT_NE(failure.message().find("float32 and int32"), std::string::npos) << failure.what();
}

TEST_F(errors, missing_counts_are_rejected) {
  const std::vector<std::uint64_t> one_entry = {1};
  const auto failure =
      thrown_by([&] { comms[0].allgatherv(queues[0], send[0], 1, recv[0], one_entry, one_entry); });
  EXPECT_NE(failure.message().find("recv_counts has 1 entries"), std::string::npos) << failure.what();
}

TEST_F(errors, core_rejects_invalid_root) {
  const auto failure = thrown_by([&] { comms[0].broadcast(queues[0], recv[0], 1, 7); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(failure.ranks().empty());
  EXPECT_NE(failure.message().find("root"), std::string::npos) << failure.what();
  EXPECT_EQ(recv[0][0], poison);
}

#if !defined(ISTHMUS_SYCL_ADAPTIVECPP)  // which has no sub-buffers
TEST_F(errors, two_sub_buffers_are_rejected) {
  sycl::buffer<int, 1> full_buffer(sycl::range<1>(1024));
  sycl::buffer<int, 1> low(full_buffer, sycl::id<1>(0), sycl::range<1>(512));
  sycl::buffer<int, 1> high(full_buffer, sycl::id<1>(512), sycl::range<1>(512));
  const auto failure = thrown_by([&] { comms[0].allreduce(queues[0], low, high, 512); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_UNSUPPORTED) << failure.what();
}
#endif

TEST_F(errors, moved_from_communicator_is_rejected) {
  const isthmus::communicator moved_to = std::move(comms[0]);
  const auto failure = thrown_by([&] { comms[0].barrier(queues[0]); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_USAGE);
}

TEST_F(errors, exception_in_group_starts_nothing) {
  thrown_by([&] {
    const isthmus::group group;
    comms[0].allreduce(queues[0], send[0], recv[0], 10);
    comms[1].broadcast(queues[1], isthmus::at_offset(sycl::buffer<int, 1>(sycl::range<1>(1)), 2), 1, 0);
  });
  EXPECT_EQ(recv[0][0], poison);
  isthmus::group next_group;  // the thread's group is usable again
  for (std::size_t r = 0; r < size; ++r) comms[r].allreduce(queues[r], send[r], recv[r], 10);
  next_group.end();
  EXPECT_EQ(recv[1][9], sum(9));
}

TEST_F(errors, invalid_operation_starts_no_group) {
  isthmus::group group;
  comms[0].allreduce(queues[0], send[0], recv[0], 10);
  comms[1].allreduce(queues[1], static_cast<int*>(nullptr), recv[1], 10);
  thrown_by([&] { group.end(); });
  EXPECT_EQ(recv[0][0], poison);
}

TEST(missing_rank, call_times_out) {
  auto comms = isthmus::communicator::create_all(devices(2), {.timeout_s = 1});
  sycl::queue queue = persistent_queue(comms[0].device());
  int own = 1, result = poison;
  const auto start = std::chrono::steady_clock::now();
  const auto failure = thrown_by([&] { comms[0].allreduce(queue, &own, &result, 1); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_TIMEOUT) << failure.what();
  EXPECT_NE(failure.message().find('1'), std::string::npos) << failure.what();
  EXPECT_EQ(failure.ranks(), std::vector{1});
  const auto later =  // a failure of the same thread that no rank caused
      thrown_by([] { isthmus::communicator::create_all({}); });
  EXPECT_TRUE(later.ranks().empty()) << later.what();
  EXPECT_EQ(failure.ranks(), std::vector{1}) << "an exception keeps its own ranks";
  EXPECT_EQ(thrown_by([&] { comms[0].barrier(queue); }).code(), ISTHMUS_ERROR_ABORTED);
}

TEST(host_task, requires_one_rank_per_process) {
  const auto failure = thrown_by(
      [] { isthmus::communicator::create_all(devices(2), {.host = isthmus::host_execution::host_task}); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(configuration, error_names_missing_file) {
  const auto failure =
      thrown_by([] { isthmus::communicator::create_all(devices(1), {.config = "no/such/file.toml"}); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(std::string(failure.what()).find("no/such/file.toml"), std::string::npos) << failure.what();
}

}  // namespace sycl_test
