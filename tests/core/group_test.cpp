// Groups: all operations start or none, native backends run inside group_start and group_end,
// blocking ranks run concurrently.
#include <barrier>
#include <set>

#include "core/support.hpp"
#include "core/test_call.hpp"

namespace {

using standin::event;

struct group_test : testing::Test {
  float send[64] = {}, recv[64] = {};
  isthmus_status allreduce(isthmus_communicator rank, std::uint64_t count = 4) {
    return isthmus_allreduce(send, recv, count, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr);
  }
};

TEST_F(group_test, outermost_end_starts_one_enqueue) {
  standin::reset();
  test::ranks ranks(1, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  isthmus_group_start();
  isthmus_group_start();
  EXPECT_EQ(allreduce(ranks[0], 1), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(allreduce(ranks[0], 2), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_barrier(ranks[0], nullptr), ISTHMUS_SUCCESS);
  EXPECT_TRUE(standin::records(event::enqueue).empty());
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  const auto enqueued = standin::records(event::enqueue);
  ASSERT_EQ(enqueued.size(), 1u);
  ASSERT_EQ(enqueued[0].operations.size(), 3u);
  EXPECT_EQ(enqueued[0].operations[0].count, 1u);
  EXPECT_EQ(enqueued[0].operations[1].count, 2u);
  EXPECT_EQ(enqueued[0].operations[2].collective, ISTHMUS_BARRIER);
}

TEST_F(group_test, native_ranks_share_one_backend_group) {
  standin::reset();
  test::ranks ranks(3, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  standin::reset();
  isthmus_group_start();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  const auto all = standin::records();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all.front().what, event::group_start);
  EXPECT_EQ(all.back().what, event::group_end);
  for (const auto& each : all)
    EXPECT_EQ(each.thread, std::this_thread::get_id()) << "native enqueues do not block";
}

// Short messages run on a backend with buffered sends, all other operations on another one.
struct mixed_group_test : testing::Test {
  static std::string configuration() {
    return "[plugins]\nstandin = \"" + standin::path() +
           "\"\nbuffered = \"" PLUGIN_FOLDER
           "/libplugin_buffered.so\"\n[[rule]]\nuse = \"standin\"\n"
           "[[rule]]\ncollective = [\"send\", \"recv\"]\nbytes = \"..100\"\nuse = \"buffered\"\n";
  }
  void SetUp() override { ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message(); }
  void send(std::uint64_t bytes, int rank = 0) {
    EXPECT_EQ(isthmus_send(buffer, bytes, ISTHMUS_UINT8, 1 - rank, ranks[rank], nullptr), ISTHMUS_SUCCESS);
  }
  void recv(std::uint64_t bytes, int rank = 0) {
    EXPECT_EQ(isthmus_recv(buffer, bytes, ISTHMUS_UINT8, 1 - rank, ranks[rank], nullptr), ISTHMUS_SUCCESS);
  }
  // Returns the batches that the group enqueues, for example "send 8, recv 8; broadcast 1".
  template <typename Post>
  std::string enqueued(Post&& post) {
    standin::reset();
    isthmus_group_start();
    post();
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
    std::string text;
    for (const auto& batch : standin::records(event::enqueue)) {
      text += text.empty() ? "" : "; ";
      for (const isthmus_operation& each : batch.operations)
        text += (&each == &batch.operations.front() ? "" : ", ") +
                std::string(isthmus_collective_name(each.collective)) + " " + std::to_string(each.count);
    }
    return text;
  }

  char buffer[1024] = {};
  test::ranks ranks{2, configuration(), ISTHMUS_PLATFORM_CUDA};
};

TEST_F(mixed_group_test, pairs_on_one_backend_are_one_batch) {
  EXPECT_EQ(enqueued([&] { send(8), send(9), recv(10), recv(11); }), "send 8, send 9, recv 10, recv 11");
  EXPECT_EQ(enqueued([&] { send(8), recv(9), send(800), recv(900); }), "send 8, recv 9; send 800, recv 900");
}

TEST_F(mixed_group_test, short_sends_are_first_and_short_receives_last) {
  EXPECT_EQ(enqueued([&] { recv(800), send(8); }), "send 8; recv 800");
  EXPECT_EQ(enqueued([&] { recv(8), send(800); }), "send 800; recv 8");
}

TEST_F(mixed_group_test, messages_follow_collectives) {
  const auto broadcast = [&] {
    EXPECT_EQ(isthmus_broadcast(buffer, buffer, 1, ISTHMUS_UINT8, 0, ranks[0], nullptr), ISTHMUS_SUCCESS);
  };
  EXPECT_EQ(enqueued([&] { send(8), broadcast(), recv(8); }), "broadcast 1; send 8, recv 8");
  EXPECT_EQ(enqueued([&] { send(8), broadcast(), recv(800); }), "broadcast 1; send 8; recv 800");
}

// One thread issues the calls of both ranks. The backend of the long message needs both ranks in one native group.
TEST_F(mixed_group_test, both_ends_of_a_long_message_are_in_one_group) {
  EXPECT_EQ(enqueued([&] { send(8), recv(800), recv(8, 1), send(800, 1); }),
            "send 8; recv 800; send 800; recv 8");
  std::vector<event> events;
  for (const auto& each : standin::records()) events.push_back(each.what);
  const std::vector expected{event::group_start, event::enqueue,  event::group_end, event::group_start,
                             event::enqueue,     event::enqueue,  event::group_end, event::group_start,
                             event::enqueue,     event::group_end};
  EXPECT_EQ(events, expected);
}

TEST_F(group_test, invalid_operation_starts_nothing) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  standin::reset();
  isthmus_group_start();
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_broadcast(send, recv, 4, ISTHMUS_FLOAT32, 9, ranks[1], nullptr),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(test::last_error().message).find("root = 9"), std::string::npos);
  EXPECT_TRUE(standin::records().empty());
  isthmus_group_start();  // the next group is not affected
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
}

TEST_F(group_test, unsupported_operation_starts_nothing) {
  standin::script script;
  script.supports = [](const isthmus_operation& operation, int) {
    return operation.collective == ISTHMUS_ALLTOALL ? "it has no alltoall" : nullptr;
  };
  standin::reset(script);
  test::ranks ranks(1, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  isthmus_group_start();
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_alltoall(send, recv, 4, ISTHMUS_FLOAT32, ranks[0], nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(test::last_error().message).find("it has no alltoall"), std::string::npos)
      << test::last_error().message;
  EXPECT_TRUE(standin::records(event::enqueue).empty());
}

TEST_F(group_test, destroyed_handle_starts_nothing) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  isthmus_communicator dead = ranks.release(1);
  isthmus_communicator_destroy(dead);
  standin::reset();
  isthmus_group_start();
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(allreduce(dead), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_TRUE(standin::records().empty());
}

TEST_F(group_test, next_group_of_the_thread_starts_empty) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  for (int rank = 0; rank < 2; ++rank) {
    standin::reset();
    isthmus_group_start();
    for (int i = 0; i <= rank; ++i) EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
    const auto enqueued = standin::records(event::enqueue);
    ASSERT_EQ(enqueued.size(), 1u);
    EXPECT_EQ(enqueued[0].rank, rank);
    EXPECT_EQ(enqueued[0].operations.size(), static_cast<std::size_t>(rank) + 1);
  }
}

TEST_F(group_test, end_without_start_fails) {
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(std::string(test::last_error().message).find("no open group"), std::string::npos);
}

TEST_F(group_test, empty_group_succeeds) {
  isthmus_group_start();
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
}

TEST_F(group_test, groups_belong_to_their_thread) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  isthmus_group_start();
  std::jthread([&] { EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_SUCCESS); }).join();
  EXPECT_EQ(standin::records(event::enqueue).size(), 1u) << "the other thread has no open group";
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
}

TEST_F(group_test, destroy_fails_inside_a_group_that_uses_it) {
  standin::reset();
  test::ranks ranks(1, standin::configuration());
  isthmus_group_start();
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_communicator_destroy(ranks[0]), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
}

TEST_F(group_test, arrays_are_copied) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  isthmus_group_start();
  {
    std::vector<std::uint64_t> counts{3, 4}, displs{0, 8};
    EXPECT_EQ(
        isthmus_allgatherv(send, 3, recv, counts.data(), displs.data(), ISTHMUS_FLOAT32, ranks[0], nullptr),
        ISTHMUS_SUCCESS);
    counts = {99, 99};
    displs = {77, 77};
  }
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  const auto enqueued = standin::records(event::enqueue);
  ASSERT_EQ(enqueued.size(), 1u);
  EXPECT_EQ(enqueued[0].arrays[2], (std::vector<std::uint64_t>{3, 4}));
  EXPECT_EQ(enqueued[0].arrays[3], (std::vector<std::uint64_t>{0, 8}));
}

// The enqueue of every rank waits for all others, so the test ends only if they run concurrently.
TEST_F(group_test, blocking_ranks_progress_together) {
  constexpr int size = 5;
  std::barrier<> entry_barrier(size);
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [&](int, const isthmus_operation&) {
    entry_barrier.arrive_and_wait();
    return ISTHMUS_SUCCESS;
  };
  standin::reset(script);
  test::ranks ranks(size, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::set<std::thread::id> threads;
  for (int round = 0; round < 20; ++round) {
    isthmus_group_start();
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  }
  for (const auto& each : standin::records(event::enqueue)) threads.insert(each.thread);
  EXPECT_EQ(threads.size(), static_cast<std::size_t>(size))
      << "worker threads are reused, and the caller is one of them";
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
  EXPECT_TRUE(standin::records(event::group_start).empty());
}

TEST_F(group_test, native_starts_before_blocking) {
  standin::reset();
  test::ranks native(2, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  ASSERT_EQ(native.status(), ISTHMUS_SUCCESS) << native.message();
  test::ranks host(2, test::host_config);
  ASSERT_EQ(host.status(), ISTHMUS_SUCCESS) << host.message();
  float in[2] = {1, 2}, out[2] = {};
  isthmus_group_start();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(isthmus_allreduce(&in[rank], &out[rank], 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, host[rank], nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(allreduce(native[rank]), ISTHMUS_SUCCESS);
  }
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
  EXPECT_EQ(standin::records(event::enqueue).size(), 2u);
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[1], 3);
}

TEST_F(group_test, failed_group_end_aborts_every_rank) {
  standin::script script;
  script.group_end = [] { return ISTHMUS_ERROR_BACKEND; };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  isthmus_group_start();
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_BACKEND);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(isthmus_communicator_async_error(ranks[rank]), ISTHMUS_ERROR_BACKEND);
}

TEST_F(group_test, failed_enqueue_still_calls_group_end) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) {
    return rank == 0 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS;
  };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  isthmus_group_start();
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_BACKEND);
  EXPECT_STREQ(test::last_error().message, "scripted failure");
  EXPECT_EQ(standin::records(event::group_end).size(), 1u);
}

TEST_F(group_test, one_thread_splits_all_its_ranks) {
  standin::reset();
  test::ranks ranks(4, standin::configuration());
  isthmus_communicator parts[4] = {};
  isthmus_group_start();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(
        isthmus_communicator_split(ranks[rank], rank == 3 ? ISTHMUS_NO_COLOR : rank % 2, -rank, &parts[rank]),
        ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
  const int sizes[] = {2, 1, 2}, places[] = {1, 0, 0};
  for (int rank = 0; rank < 3; ++rank) {
    int size = 0, place = -1;
    EXPECT_EQ(isthmus_communicator_size(parts[rank], &size), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_communicator_rank(parts[rank], &place), ISTHMUS_SUCCESS);
    EXPECT_EQ(size, sizes[rank]);
    EXPECT_EQ(place, places[rank]);
    EXPECT_EQ(isthmus_communicator_destroy(parts[rank]), ISTHMUS_SUCCESS);
  }
  EXPECT_EQ(parts[3], nullptr);
}

}  // namespace
