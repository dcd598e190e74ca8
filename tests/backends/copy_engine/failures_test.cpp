// Failures: mismatched calls, missing ranks, aborts and driver faults.
#include <gtest/gtest.h>

#include <chrono>

#include "conformance/rank_buffers.hpp"
#include "topology.hpp"

namespace copy_engine_test {
namespace {

using namespace std::chrono_literals;
using steady_clock = std::chrono::steady_clock;

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

// Polls until the backend reports a failure, and returns its status.
isthmus_status wait_for_failure(rank_runner& runner, std::chrono::seconds limit) {
  const auto end = steady_clock::now() + limit;
  while (steady_clock::now() < end) {
    if (const isthmus_status status = runner.state().poll(); status != ISTHMUS_SUCCESS) return status;
    std::this_thread::sleep_for(2ms);
  }
  return ISTHMUS_SUCCESS;
}

TEST(copy_engine_failures, missing_rank_times_out_and_releases_stream) {
  test_setup setup;
  setup.timeout_s = 0.4;
  topology all(setup);
  rank_runner& runner = all.at(0);
  ASSERT_EQ(runner.run(allgather(runner.heap().data(), runner.heap().data() + 8192), nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(wait_for_failure(runner, 10s), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_NE(runner.message.find("no signal from rank(s) 1"), std::string::npos) << runner.message;
  EXPECT_NE(runner.message.find("allgather of 500 x int32"), std::string::npos) << runner.message;
  EXPECT_EQ(runner.enqueue(allgather(runner.heap().data(), runner.heap().data() + 8192), nullptr),
            ISTHMUS_ERROR_TIMEOUT);
}

TEST(copy_engine_failures, missing_rank_is_named_in_lockstep_calls) {
  test_setup setup;
  setup.ranks = 4;
  setup.options = {4096, 1 << 20, 1};
  setup.timeout_s = 0.4;
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    if (runner.number() == 2) return;
    ASSERT_EQ(runner.enqueue(allgather(runner.heap().data(), runner.heap().data() + (1 << 18), 6000), "staged"),
              ISTHMUS_SUCCESS);
    const isthmus_status status = wait_for_failure(runner, 10s);
    EXPECT_TRUE(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE);
    if (status == ISTHMUS_ERROR_TIMEOUT) {
      EXPECT_NE(runner.message.find("no signal from rank(s) 2"), std::string::npos) << runner.message;
    }
  });
}

TEST(copy_engine_failures, peers_name_the_rank_that_aborted) {
  test_setup setup;
  setup.timeout_s = 30;
  topology all(setup);
  all.at(1).state().abort();
  rank_runner& survivor = all.at(0);
  const auto begin = steady_clock::now();
  ASSERT_EQ(survivor.run(allgather(survivor.heap().data(), survivor.heap().data() + 8192), "staged"),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(wait_for_failure(survivor, 10s), ISTHMUS_ERROR_REMOTE);
  EXPECT_LT(steady_clock::now() - begin, 10s);
  EXPECT_NE(survivor.message.find("rank 1 aborted"), std::string::npos) << survivor.message;
}

TEST(copy_engine_failures, abort_releases_stream_with_many_queued_calls) {
  for (const char* name : {"zero_copy", "push", "staged", "sums"}) {
    test_setup setup;
    setup.options = {2048, 0, 1};
    topology all(setup);
    rank_runner& survivor = all.at(0);
    isthmus_operation operation = allgather(survivor.heap().data(), survivor.heap().data() + 8192);
    const bool sums = std::string(name) == "sums";
    if (sums) operation.collective = ISTHMUS_REDUCE_SCATTER;
    for (int i = 0; i < 20; ++i) ASSERT_EQ(survivor.enqueue(operation, sums ? nullptr : name), ISTHMUS_SUCCESS);
    std::this_thread::sleep_for(50ms);
    survivor.state().abort();
    survivor.driver().synchronize(0, survivor.stream());  // hangs if the stream is not released
    EXPECT_EQ(wait_for_failure(survivor, 5s), ISTHMUS_ERROR_ABORTED);
  }
}

// If a rank fails anywhere in a call with many chunks, its peers get an error and their streams are released.
TEST(copy_engine_failures, rank_failure_mid_call_releases_all_peers) {
  constexpr std::uint64_t elements = 6000;
  for (const isthmus_collective collective : {ISTHMUS_ALLGATHER, ISTHMUS_REDUCE_SCATTER}) {
    for (int calls = 5; calls < 50; calls += 9) {
      test_setup setup;
      setup.ranks = 3;
      setup.options = {4096, 1 << 20, 1};
      setup.timeout_s = 0.3;
      topology all(setup);
      all.at(2).driver().fail_after(calls);
      all.for_each_rank([&](rank_runner& runner) {
        isthmus_operation operation =
            allgather(runner.heap().data(), runner.heap().data() + (1 << 18), elements);
        operation.collective = collective;
        const char* name = collective == ISTHMUS_ALLGATHER ? "staged" : nullptr;
        const isthmus_status status = runner.enqueue(operation, name);
        EXPECT_EQ(status, runner.number() == 2 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS);
        if (runner.number() == 2) return;
        const isthmus_status failure = wait_for_failure(runner, 10s);
        EXPECT_TRUE(failure == ISTHMUS_ERROR_TIMEOUT || failure == ISTHMUS_ERROR_REMOTE) << runner.message;
        runner.driver().synchronize(0, runner.stream());  // hangs if the stream is not released
      });
    }
  }
}

// Calls that differ in size, heap offset, collective or algorithm: both ranks get an error soon, and only the
// receive buffers of the calls are written.
struct mismatch {
  const char* name;
  std::uint64_t other_count;
  std::size_t other_offset;
  const char* algorithms[2];
  isthmus_collective collectives[2] = {ISTHMUS_ALLGATHER, ISTHMUS_ALLGATHER};
  isthmus_reduction_op second_op = ISTHMUS_SUM;
};
void PrintTo(const mismatch& parameters, std::ostream* out) { *out << parameters.name; }

class mismatches : public testing::TestWithParam<mismatch> {};

TEST_P(mismatches, are_errors_and_write_only_recv_buffers) {
  const mismatch& parameters = GetParam();
  test_setup setup;
  setup.timeout_s = 20;
  setup.options = {1 << 14, 1 << 12, 1};
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    std::fill(runner.heap().begin(), runner.heap().end(), std::byte{0xa5});
    const bool second = runner.number() == 1;
    const std::size_t place = second ? parameters.other_offset : 0;
    constexpr std::size_t recv_at = 1 << 16, recv_end = recv_at + (1 << 15);
    isthmus_operation operation = allgather(runner.heap().data() + place, runner.heap().data() + recv_at,
                                            second ? parameters.other_count : count);
    operation.collective = parameters.collectives[runner.number()];
    if (operation.collective == ISTHMUS_GATHER) operation.root = 1;
    if (second) operation.op = parameters.second_op;
    const auto begin = steady_clock::now();
    ASSERT_EQ(runner.run(operation, parameters.algorithms[runner.number()]), ISTHMUS_SUCCESS);
    const isthmus_status status = wait_for_failure(runner, 15s);
    EXPECT_TRUE(status == ISTHMUS_ERROR_MISMATCH || status == ISTHMUS_ERROR_REMOTE)
        << status << " " << runner.message;
    EXPECT_LT(steady_clock::now() - begin, 15s);
    for (std::size_t i = 0; i < runner.heap().size(); ++i)
      if (i < recv_at || i >= recv_end) {
        ASSERT_EQ(runner.heap()[i], std::byte{0xa5}) << "byte " << i;
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

TEST(copy_engine_failures, driver_fault_is_reported) {
  test_setup setup;
  setup.timeout_s = 1;
  topology all(setup);
  rank_runner& runner = all.at(0);
  runner.driver().fail_after(1);
  EXPECT_EQ(runner.enqueue(allgather(runner.heap().data(), runner.heap().data() + 8192), nullptr),
            ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(runner.message.find("injected fault"), std::string::npos) << runner.message;
}

TEST(copy_engine_failures, failed_constructor_leaks_nothing) {
  isthmus_backend_context context{};
  context.size = 2;
  context.timeout_s = 1;
  context.set_awaited_rank = [](void*, int) {};
  for (int calls = 0; calls < 4; ++calls) {
    standin_driver driver(1, {});
    driver.fail_after(calls);
    EXPECT_ANY_THROW(isthmus::copy_engine::copy_engine_state(context, driver, {4096, 0, 1}));
  }
}

}  // namespace
}  // namespace copy_engine_test
