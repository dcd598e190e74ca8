// What happens when ranks do not do the same, do not come, or give up.
#include <gtest/gtest.h>

#include <chrono>

#include "conformance/rank_buffers.hpp"
#include "topology.hpp"

namespace copy_engine_test {
namespace {

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

constexpr std::uint64_t count = 500;

isthmus_operation allgather(const std::byte* send, std::byte* recv, std::uint64_t elements = count) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLGATHER;
  operation.datatype = ISTHMUS_INT32;
  operation.count = elements;
  operation.send_buf = send;
  operation.recv_buf = recv;
  return operation;
}

// Polls until the backend says that something went wrong; its status.
isthmus_status wait_for_failure(rank_runner& one, std::chrono::seconds limit) {
  const auto end = steady::now() + limit;
  while (steady::now() < end) {
    if (const isthmus_status status = one.state().poll(); status != ISTHMUS_SUCCESS) return status;
    std::this_thread::sleep_for(2ms);
  }
  return ISTHMUS_SUCCESS;
}

TEST(copy_engine_failures, a_missing_rank_is_a_timeout_and_the_stream_goes_on) {
  test_setup setup;
  setup.timeout_s = 0.4;
  topology all(setup);
  rank_runner& alone = all.at(0);
  ASSERT_EQ(alone.run(allgather(alone.heap().data(), alone.heap().data() + 8192), nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(wait_for_failure(alone, 10s), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_NE(alone.message.find("no signal from rank(s) 1"), std::string::npos) << alone.message;
  EXPECT_NE(alone.message.find("allgather of 500 x int32"), std::string::npos) << alone.message;
  EXPECT_EQ(alone.enqueue(allgather(alone.heap().data(), alone.heap().data() + 8192), nullptr),
            ISTHMUS_ERROR_TIMEOUT);
}

TEST(copy_engine_failures, a_rank_missing_among_others_in_step_is_named) {
  test_setup setup;
  setup.ranks = 4;
  setup.options = {4096, 1 << 20, 1};
  setup.timeout_s = 0.4;
  topology all(setup);
  all.each([&](rank_runner& one) {
    if (one.number() == 2) return;
    ASSERT_EQ(one.enqueue(allgather(one.heap().data(), one.heap().data() + (1 << 18), 6000), "staged"),
              ISTHMUS_SUCCESS);
    const isthmus_status status = wait_for_failure(one, 10s);
    EXPECT_TRUE(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE);
    if (status == ISTHMUS_ERROR_TIMEOUT) {
      EXPECT_NE(one.message.find("no signal from rank(s) 2"), std::string::npos) << one.message;
    }
  });
}

TEST(copy_engine_failures, a_rank_that_gave_up_is_named_by_its_peers) {
  test_setup setup;
  setup.timeout_s = 30;
  topology all(setup);
  all.at(1).state().abort();
  rank_runner& waiting = all.at(0);
  const auto begin = steady::now();
  ASSERT_EQ(waiting.run(allgather(waiting.heap().data(), waiting.heap().data() + 8192), "staged"), ISTHMUS_SUCCESS);
  EXPECT_EQ(wait_for_failure(waiting, 10s), ISTHMUS_ERROR_REMOTE);
  EXPECT_LT(steady::now() - begin, 10s);
  EXPECT_NE(waiting.message.find("rank 1 gave up"), std::string::npos) << waiting.message;
}

TEST(copy_engine_failures, abort_releases_a_stream_with_many_calls_queued) {
  for (const char* name : {"zero_copy", "push", "staged", "sums"}) {
    test_setup setup;
    setup.options = {2048, 0, 1};
    topology all(setup);
    rank_runner& waiting = all.at(0);
    isthmus_operation operation = allgather(waiting.heap().data(), waiting.heap().data() + 8192);
    const bool sums = std::string(name) == "sums";
    if (sums) operation.collective = ISTHMUS_REDUCE_SCATTER;
    for (int i = 0; i < 20; ++i) ASSERT_EQ(waiting.enqueue(operation, sums ? nullptr : name), ISTHMUS_SUCCESS);
    std::this_thread::sleep_for(50ms);
    waiting.state().abort();
    waiting.driver().synchronize(0, waiting.stream());  // the test hangs when it is not released
    EXPECT_EQ(wait_for_failure(waiting, 5s), ISTHMUS_ERROR_ABORTED);
  }
}

// Wherever a rank breaks off in a call of many pieces, its peers get an error and their streams go on.
TEST(copy_engine_failures, a_rank_that_breaks_off_in_the_middle_leaves_nobody_stuck) {
  constexpr std::uint64_t elements = 6000;
  for (const isthmus_collective collective : {ISTHMUS_ALLGATHER, ISTHMUS_REDUCE_SCATTER}) {
    for (int calls = 5; calls < 50; calls += 9) {
      test_setup setup;
      setup.ranks = 3;
      setup.options = {4096, 1 << 20, 1};
      setup.timeout_s = 0.3;
      topology all(setup);
      all.at(2).driver().fail_after(calls);
      all.each([&](rank_runner& one) {
        isthmus_operation operation = allgather(one.heap().data(), one.heap().data() + (1 << 18), elements);
        operation.collective = collective;
        const char* name = collective == ISTHMUS_ALLGATHER ? "staged" : nullptr;
        const isthmus_status status = one.enqueue(operation, name);
        EXPECT_EQ(status, one.number() == 2 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS);
        if (one.number() == 2) return;
        const isthmus_status failure = wait_for_failure(one, 10s);
        EXPECT_TRUE(failure == ISTHMUS_ERROR_TIMEOUT || failure == ISTHMUS_ERROR_REMOTE) << one.message;
        one.driver().synchronize(0, one.stream());  // the test hangs when it is not released
      });
    }
  }
}

// Different sizes, places, collectives and ways: an error on both sides, soon, and nobody's buffers written
// but the receive buffers of the calls.
struct mismatch {
  const char* name;
  std::uint64_t other_count;
  std::size_t other_place;
  const char* algorithms[2];
  isthmus_collective collectives[2] = {ISTHMUS_ALLGATHER, ISTHMUS_ALLGATHER};
  isthmus_reduction_op second_op = ISTHMUS_SUM;
};
void PrintTo(const mismatch& one, std::ostream* out) { *out << one.name; }

class mismatches : public testing::TestWithParam<mismatch> {};

TEST_P(mismatches, are_errors_and_write_nothing_elsewhere) {
  const mismatch& parameters = GetParam();
  test_setup setup;
  setup.timeout_s = 20;
  setup.options = {1 << 14, 1 << 12, 1};
  topology all(setup);
  all.each([&](rank_runner& one) {
    std::fill(one.heap().begin(), one.heap().end(), std::byte{0xa5});
    const bool second = one.number() == 1;
    const std::size_t place = second ? parameters.other_place : 0;
    constexpr std::size_t recv_at = 1 << 16, recv_end = recv_at + (1 << 15);
    isthmus_operation operation =
        allgather(one.heap().data() + place, one.heap().data() + recv_at, second ? parameters.other_count : count);
    operation.collective = parameters.collectives[one.number()];
    if (operation.collective == ISTHMUS_GATHER) operation.root = 1;
    if (second) operation.op = parameters.second_op;
    const auto begin = steady::now();
    ASSERT_EQ(one.run(operation, parameters.algorithms[one.number()]), ISTHMUS_SUCCESS);
    const isthmus_status status = wait_for_failure(one, 15s);
    EXPECT_TRUE(status == ISTHMUS_ERROR_MISMATCH || status == ISTHMUS_ERROR_REMOTE)
        << status << " " << one.message;
    EXPECT_LT(steady::now() - begin, 15s);
    for (std::size_t i = 0; i < one.heap().size(); ++i)
      if (i < recv_at || i >= recv_end) {
        ASSERT_EQ(one.heap()[i], std::byte{0xa5}) << "byte " << i;
      }
  });
}

INSTANTIATE_TEST_SUITE_P(
    kinds, mismatches,
    testing::Values(mismatch{"size", count + 1, 0, {nullptr, nullptr}},
                    mismatch{"size_staged", count - 3, 0, {"staged", "staged"}},
                    mismatch{"place", count, 4096, {"zero_copy", "zero_copy"}},
                    mismatch{"way", count, 0, {"zero_copy", "staged"}},
                    mismatch{"direction", count, 0, {"staged", "push"}},
                    mismatch{"collective", count, 0, {"staged", "staged"}, {ISTHMUS_ALLGATHER, ISTHMUS_GATHER}},
                    mismatch{
                        "role", count, 0, {"staged", "staged"}, {ISTHMUS_ALLTOALL, ISTHMUS_REDUCE_SCATTER}},
                    mismatch{"operation",
                             count,
                             0,
                             {nullptr, nullptr},
                             {ISTHMUS_REDUCE_SCATTER, ISTHMUS_REDUCE_SCATTER},
                             ISTHMUS_MAX}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(copy_engine_failures, a_fault_of_the_driver_is_reported_with_its_code) {
  test_setup setup;
  setup.timeout_s = 1;
  topology all(setup);
  rank_runner& one = all.at(0);
  one.driver().fail_after(1);
  EXPECT_EQ(one.enqueue(allgather(one.heap().data(), one.heap().data() + 8192), nullptr),
            ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(one.message.find("injected fault"), std::string::npos) << one.message;
}

TEST(copy_engine_failures, a_constructor_that_fails_leaves_nothing_behind) {
  isthmus_backend_context context{};
  context.size = 2;
  context.timeout_s = 1;
  for (int calls = 0; calls < 4; ++calls) {
    standin_driver driver(1, {});
    driver.fail_after(calls);
    EXPECT_ANY_THROW(isthmus::copy_engine::copy_engine_state(context, driver, {4096, 0, 1}));
  }
}

}  // namespace
}  // namespace copy_engine_test
