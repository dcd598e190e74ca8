// The option starts_together: operations of the ranks of one process start and return together.
#include <atomic>
#include <chrono>
#include <future>

#include "core/support.hpp"

namespace {

using namespace std::chrono_literals;
using standin::event;

constexpr int process_size = 3;

struct start_barrier_test : testing::Test {
  ~start_barrier_test() override {
    for (isthmus_communicator handle : ranks) isthmus_communicator_destroy(handle);
  }
  void create(standin::script script = {}, double timeout_s = 10, int starts_together = 1) {
    standin::reset(std::move(script));
    auto options = test::options_for(file, timeout_s);
    options.starts_together = starts_together;
    const std::vector<isthmus_device> devices(process_size, isthmus_device{ISTHMUS_PLATFORM_CUDA, 0});
    ASSERT_EQ(isthmus_communicator_create_all(process_size, devices.data(), &options, ranks.data()),
              ISTHMUS_SUCCESS)
        << test::last_error().message;
  }
  isthmus_status allreduce(int rank) {
    return isthmus_allreduce(send, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[static_cast<std::size_t>(rank)],
                             nullptr);
  }
  isthmus_status send_to(int peer, int rank) {
    return isthmus_send(send, 4, ISTHMUS_FLOAT32, peer, ranks[static_cast<std::size_t>(rank)], nullptr);
  }
  isthmus_status receive_from(int peer, int rank) {
    return isthmus_recv(recv, 4, ISTHMUS_FLOAT32, peer, ranks[static_cast<std::size_t>(rank)], nullptr);
  }
  std::future<isthmus_status> allreduce_in_thread(int rank) {
    return std::async(std::launch::async, [this, rank] { return allreduce(rank); });
  }
  static bool has_ended(const std::future<isthmus_status>& call) {
    return call.wait_for(0s) == std::future_status::ready;
  }

  test::scoped_file file{standin::configuration()};
  std::vector<isthmus_communicator> ranks = std::vector<isthmus_communicator>(process_size);
  float send[64] = {}, recv[64] = {};
};

TEST_F(start_barrier_test, no_rank_starts_before_the_last_call) {
  create();
  auto first = allreduce_in_thread(0), second = allreduce_in_thread(2);
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(standin::records(event::enqueue).empty());
  EXPECT_EQ(allreduce(1), ISTHMUS_SUCCESS);
  EXPECT_EQ(first.get(), ISTHMUS_SUCCESS);
  EXPECT_EQ(second.get(), ISTHMUS_SUCCESS);
  EXPECT_EQ(standin::records(event::enqueue).size(), 3u);
}

TEST_F(start_barrier_test, no_rank_returns_before_the_last_start) {
  std::promise<void> may_start;
  auto gate = may_start.get_future().share();
  standin::script script;
  script.enqueue = [gate](int rank, const isthmus_operation&) {
    if (rank == 1) gate.wait();
    return ISTHMUS_SUCCESS;
  };
  create(script);
  auto first = allreduce_in_thread(0), slow = allreduce_in_thread(1), third = allreduce_in_thread(2);
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(has_ended(first));
  EXPECT_FALSE(has_ended(third));
  may_start.set_value();
  for (auto* call : {&first, &slow, &third}) EXPECT_EQ(call->get(), ISTHMUS_SUCCESS);
}

TEST_F(start_barrier_test, missing_ranks_are_named) {
  create({}, 0.3);
  EXPECT_EQ(allreduce(1), ISTHMUS_ERROR_TIMEOUT);
  const isthmus_error_info error = test::last_error();
  EXPECT_STREQ(error.message,
               "allreduce: ranks 0 and 2 of this process did not make the matching call within 0.3 s");
  EXPECT_EQ(error.rank, 1);
  EXPECT_TRUE(standin::records(event::enqueue).empty());
  EXPECT_NE(allreduce(0), ISTHMUS_SUCCESS) << "the communicator was not aborted";
}

TEST_F(start_barrier_test, abort_ends_the_wait) {
  create();
  auto call = allreduce_in_thread(0);
  std::this_thread::sleep_for(20ms);
  isthmus_communicator_abort(ranks[1]);
  EXPECT_EQ(call.get(), ISTHMUS_ERROR_ABORTED);
  EXPECT_TRUE(standin::records(event::enqueue).empty());
}

TEST_F(start_barrier_test, failed_start_releases_the_other_ranks) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) {
    return rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS;
  };
  create(script);
  auto first = allreduce_in_thread(0), third = allreduce_in_thread(2);
  EXPECT_EQ(allreduce(1), ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(first.get(), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_NE(third.get(), ISTHMUS_ERROR_TIMEOUT);
}

TEST_F(start_barrier_test, one_thread_drives_all_ranks_in_a_group) {
  create();
  isthmus_group_start();
  for (int rank = 0; rank < process_size; ++rank) EXPECT_EQ(allreduce(rank), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(standin::records(event::enqueue).size(), 3u);
}

TEST_F(start_barrier_test, messages_wait_for_their_peer) {
  create();
  auto call = std::async(std::launch::async, [this] { return send_to(1, 0); });
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(standin::records(event::enqueue).empty());
  EXPECT_EQ(receive_from(0, 1), ISTHMUS_SUCCESS);
  EXPECT_EQ(call.get(), ISTHMUS_SUCCESS);
}

TEST_F(start_barrier_test, a_message_without_a_receiver_names_the_peer) {
  create({}, 0.3);
  EXPECT_EQ(send_to(2, 0), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_STREQ(test::last_error().message,
               "send: rank 2 of this process did not make the matching call within 0.3 s");
}

// Rank 0 groups what the others call one after the other, in an order in which its first peer comes last.
TEST_F(start_barrier_test, groups_may_differ_between_ranks) {
  create();
  auto rank1 = std::async(std::launch::async, [this] {
    EXPECT_EQ(receive_from(0, 1), ISTHMUS_SUCCESS);
    EXPECT_EQ(send_to(2, 1), ISTHMUS_SUCCESS);
    EXPECT_EQ(allreduce(1), ISTHMUS_SUCCESS);
    return allreduce(1);
  });
  auto rank2 = std::async(std::launch::async, [this] {
    EXPECT_EQ(receive_from(1, 2), ISTHMUS_SUCCESS);
    EXPECT_EQ(receive_from(0, 2), ISTHMUS_SUCCESS);
    EXPECT_EQ(allreduce(2), ISTHMUS_SUCCESS);
    return allreduce(2);
  });
  isthmus_group_start();
  EXPECT_EQ(send_to(2, 0), ISTHMUS_SUCCESS);
  EXPECT_EQ(send_to(1, 0), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  isthmus_group_start();
  EXPECT_EQ(allreduce(0), ISTHMUS_SUCCESS);
  EXPECT_EQ(allreduce(0), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(rank1.get(), ISTHMUS_SUCCESS);
  EXPECT_EQ(rank2.get(), ISTHMUS_SUCCESS);
}

TEST_F(start_barrier_test, one_thread_may_drive_some_ranks_in_a_group) {
  create();
  for (int call = 0; call < 2; ++call) {
    auto other = allreduce_in_thread(2);
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(has_ended(other));
    isthmus_group_start();
    EXPECT_EQ(allreduce(0), ISTHMUS_SUCCESS);
    EXPECT_EQ(allreduce(1), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
    EXPECT_EQ(other.get(), ISTHMUS_SUCCESS);
  }
}

TEST_F(start_barrier_test, is_off_by_default_and_inherited_by_splits) {
  create({}, 10, 0);
  EXPECT_EQ(allreduce(0), ISTHMUS_SUCCESS);
  for (isthmus_communicator& handle : ranks) isthmus_communicator_destroy(std::exchange(handle, nullptr));
  create({}, 0.3);
  std::vector<isthmus_communicator> parts(process_size);
  isthmus_group_start();
  for (std::size_t rank = 0; rank < process_size; ++rank)
    EXPECT_EQ(isthmus_communicator_split(ranks[rank], 0, 0, &parts[rank]), ISTHMUS_SUCCESS);
  ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_allreduce(send, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, parts[0], nullptr),
            ISTHMUS_ERROR_TIMEOUT);
  for (isthmus_communicator handle : parts) isthmus_communicator_destroy(handle);
}

}  // namespace
