// Failures of one process: aborted communicators, timeouts, destroyed handles and ranks with different setups.
#include <isthmus/tools.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <latch>

#include "bootstrap/exchange.hpp"
#include "core/communicator.hpp"
#include "core/handles.hpp"
#include "core/support.hpp"
#include "failure/health.hpp"

namespace {

using isthmus::is_secondary_status;
using standin::event;
using test::last_error;
using seconds = std::chrono::duration<double>;

isthmus_status allreduce(isthmus_communicator rank) {
  static thread_local float send[4], recv[4];
  return isthmus_allreduce(send, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr);
}

standin::script failing_enqueue() {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) {
    return rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS;
  };
  return script;
}

TEST(failure, is_reported_with_all_details) {
  standin::reset(failing_enqueue());
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_BACKEND);
  const auto error = last_error();
  EXPECT_STREQ(error.message, "scripted failure");
  EXPECT_STREQ(error.hint, "scripted hint");
  EXPECT_STREQ(error.backend, "standin");
  EXPECT_EQ(error.native_code, 77);
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.collective, ISTHMUS_ALLREDUCE);
}

TEST(failure, is_repeated_by_later_calls_of_all_ranks) {
  standin::reset(failing_enqueue());
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_BACKEND);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    const std::string message = last_error().message;
    EXPECT_NE(message.find("scripted failure"), std::string::npos) << message;
    EXPECT_NE(message.find("on rank 1"), std::string::npos) << message;
    EXPECT_EQ(isthmus_communicator_async_error(ranks[rank]), ISTHMUS_ERROR_BACKEND);
    EXPECT_STREQ(last_error().message, "scripted failure");
    EXPECT_EQ(last_error().rank, 1);
  }
  EXPECT_EQ(standin::records(event::enqueue).size(), 1u) << "an aborted communicator enqueues nothing";
  EXPECT_EQ(standin::records(event::abort).size(), 2u) << "abort is called once for each rank's backend";
}

TEST(failure, of_a_silent_backend_has_a_message) {
  auto script = failing_enqueue();
  script.failure = "";
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(std::string(last_error().message).find("standin returned the status"), std::string::npos);
}

std::vector<int> failed_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

// Rank 1 times out waiting for these ranks.
standin::script failing_with_ranks(std::vector<int> lost_ranks) {
  standin::script script;
  script.failure = "";
  script.enqueue = [lost_ranks = std::move(lost_ranks)](int rank, const isthmus_operation&) {
    if (rank != 1) return ISTHMUS_SUCCESS;
    const isthmus_backend_context& context = *standin::context_of(rank);
    return context.fail_with_ranks(context.runtime, lost_ranks.data(), lost_ranks.size(), ISTHMUS_ERROR_TIMEOUT,
                                   5, "standin:1", "a hint", "waited for %zu", lost_ranks.size());
  };
  return script;
}

TEST(failed_ranks, of_a_backend_are_reported) {
  standin::reset(failing_with_ranks({0, 2}));
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(failed_ranks(), (std::vector{0, 2}));
  EXPECT_EQ(std::string(last_error().message).find("waited for 2"), 0u) << last_error().message;
  EXPECT_STREQ(last_error().hint, "a hint");
  EXPECT_EQ(last_error().native_code, 5);
  int first = -1;
  EXPECT_EQ(isthmus_last_error_ranks(&first, 1), 2u) << "the return value counts all failed ranks";
  EXPECT_EQ(first, 0);
  EXPECT_EQ(allreduce(nullptr), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_EQ(failed_ranks(), std::vector<int>()) << "failed ranks belong to their failure";
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_ERROR_ABORTED);
  EXPECT_EQ(failed_ranks(), (std::vector{0, 2})) << "later calls report them as well";
}

TEST(failed_ranks, are_limited_to_sixteen) {
  standin::reset(failing_with_ranks(std::vector<int>(40, 2)));
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(failed_ranks(), std::vector<int>(16, 2));
}

TEST(failed_ranks, exclude_invalid_ranks) {
  standin::reset(failing_with_ranks({-1, 2, 3}));
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(failed_ranks(), std::vector<int>{2});
}

TEST(failed_ranks, are_empty_for_a_local_failure) {
  standin::reset(failing_enqueue());
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(failed_ranks(), std::vector<int>())
      << "the other ranks are absent, but rank 1 did not wait for them";
}

TEST(failed_ranks, come_from_the_recorder_by_default) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) {
    return rank == 1 ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_SUCCESS;
  };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(allreduce(ranks[1]), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(failed_ranks(), (std::vector{0, 2})) << last_error().message;
}

// Rank 1 waits for a rank that is itself blocked. A backend knows only its own peer.
TEST(failed_ranks, of_a_message_chain_are_its_last_rank) {
  std::atomic<bool> is_over{false}, is_inside{false};
  standin::script script;
  script.failure = "";
  script.enqueue = [&](int rank, const isthmus_operation&) {
    if (rank == 0) {
      is_inside = true;
      while (!is_over) std::this_thread::yield();
      return ISTHMUS_SUCCESS;
    }
    const isthmus_backend_context& context = *standin::context_of(rank);
    constexpr int peer = 0;
    return context.fail_with_ranks(context.runtime, &peer, 1, ISTHMUS_ERROR_TIMEOUT, 0, "standin:1", nullptr,
                                   "rank 1 waited 10 s to receive from rank 0");
  };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  const auto receive = [&](int rank, int from) {
    float data[4];
    return isthmus_recv(data, 4, ISTHMUS_FLOAT32, from, ranks[rank], nullptr);
  };
  auto receiver = std::async(std::launch::async, receive, 0, 2);
  while (!is_inside) std::this_thread::yield();
  EXPECT_EQ(receive(1, 0), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(failed_ranks(), std::vector{2}) << last_error().message;
  is_over = true;
  EXPECT_EQ(receiver.get(), ISTHMUS_SUCCESS);
}

// All ranks are inside the call. Rank 1 waits for rank 0, which waits for rank 2.
void expect_last_rank_of_chain(int first_rank) {
  std::atomic<bool> is_over{false};
  std::atomic<int> ranks_inside{0};
  standin::script script;
  script.failure = "";
  script.enqueue = [&](int rank, const isthmus_operation&) {
    const isthmus_backend_context& context = *standin::context_of(rank);
    if (rank != 2) context.set_awaited_rank(context.runtime, rank == 1 ? 0 : 2);
    ++ranks_inside;
    while (rank != 1 ? !is_over : ranks_inside < 3) std::this_thread::yield();
    if (rank != 1) return ISTHMUS_SUCCESS;
    constexpr int peer = 0;
    return context.fail_with_ranks(context.runtime, &peer, 1, ISTHMUS_ERROR_TIMEOUT, 0, "standin:1", nullptr,
                                   "rank 1 waited 10 s for rank 0");
  };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  test::run_on_each_rank(3, [&](int rank) {
    while (rank != first_rank && ranks_inside == 0) std::this_thread::yield();
    const isthmus_status status = allreduce(ranks[rank]);
    if (rank != 1) return;
    EXPECT_EQ(status, ISTHMUS_ERROR_TIMEOUT);
    EXPECT_EQ(failed_ranks(), std::vector{2}) << last_error().message;
    EXPECT_NE(std::string(last_error().message).find("wait for rank 2"), std::string::npos)
        << last_error().message;
    is_over = true;
  });
}

TEST(failed_ranks, of_a_chain_of_waits_are_its_last_rank) {
  expect_last_rank_of_chain(0);
  expect_last_rank_of_chain(2);  // the slow rank entered the call first
}

// The subcommunicator of the parent's ranks 1 and 3 fails on its first rank because of its second.
TEST(failed_ranks, of_a_failed_split_are_parent_ranks) {
  static thread_local bool must_fail = false;
  standin::script script;
  script.failure = "";
  script.in_create = [](const isthmus_backend_context& context) {
    must_fail = context.size == 2 && context.rank == 0;
    constexpr int second = 1;
    if (must_fail)
      context.fail_with_ranks(context.runtime, &second, 1, ISTHMUS_ERROR_TIMEOUT, 0, "standin:1", nullptr,
                              "waited for the second rank of the subcommunicator");
  };
  script.create = [](int) { return must_fail ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_SUCCESS; };
  standin::reset(script);
  test::ranks ranks(4, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  test::run_on_each_rank(4, [&](int rank) {
    isthmus_communicator subcommunicator = nullptr;
    const auto status =
        isthmus_communicator_split(ranks[rank], rank == 1 || rank == 3 ? 1 : -1, 0, &subcommunicator);
    EXPECT_EQ(status == ISTHMUS_SUCCESS, rank % 2 == 0);
    if (rank == 1) {
      EXPECT_EQ(failed_ranks(), std::vector{3}) << last_error().message;
    }
    isthmus_communicator_destroy(subcommunicator);
  });
}

// Rank 3 takes part in the split, but not in the first exchange of the subcommunicator of ranks 1 and 3.
TEST(failed_ranks, of_a_split_without_membership_are_parent_ranks) {
  standin::reset();
  test::ranks ranks(4, standin::configuration(), ISTHMUS_PLATFORM_HOST, 0.5);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  test::run_on_each_rank(4, [&](int rank) {
    if (rank == 3) {
      isthmus::bootstrap& control = isthmus::handle_table::instance().find(ranks[rank]).control();
      const auto unused = control.split(1, 0);
      isthmus::gather_votes(control, isthmus::no_value{}, std::nullopt);
      return;
    }
    isthmus_communicator subcommunicator = nullptr;
    const auto status = isthmus_communicator_split(ranks[rank], rank == 1 ? 1 : -1, 0, &subcommunicator);
    EXPECT_EQ(status, rank == 1 ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_SUCCESS);
    if (rank != 1) return;
    EXPECT_EQ(failed_ranks(), std::vector{3});
    EXPECT_NE(std::string(last_error().message).find("rank 3 of the parent is rank 1 in this text"),
              std::string::npos)
        << last_error().message;
  });
}

TEST(failure, at_destroy_reports_the_root_cause) {
  isthmus_communicator other = nullptr;
  standin::script script;
  script.synchronize = [&](int rank) {
    if (rank != 0) return ISTHMUS_SUCCESS;
    isthmus_communicator_abort(other);
    return ISTHMUS_ERROR_REMOTE;
  };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  other = ranks[1];
  EXPECT_EQ(isthmus_communicator_destroy(ranks.release(0)), ISTHMUS_ERROR_ABORTED);
  EXPECT_NE(std::string(last_error().message).find("abort was called on rank 1"), std::string::npos)
      << last_error().message;
}

TEST(failure, is_found_asynchronously_by_poll) {
  std::atomic<bool> broken{false};
  standin::script script;
  script.poll = [&](int) { return broken ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS; };
  standin::reset(script);
  test::ranks ranks(1, standin::configuration());
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_SUCCESS);
  broken = true;
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_ERROR_ABORTED);
}

TEST(failure, prevents_a_split) {
  standin::reset();
  test::ranks ranks(1, standin::configuration());
  ASSERT_EQ(isthmus_communicator_abort(ranks[0]), ISTHMUS_SUCCESS);
  isthmus_communicator subcommunicator = ranks[0];
  EXPECT_EQ(isthmus_communicator_split(ranks[0], 0, 0, &subcommunicator), ISTHMUS_ERROR_ABORTED);
  EXPECT_EQ(subcommunicator, nullptr);
}

TEST(abort, reaches_all_ranks_of_the_process) {
  standin::reset();
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(isthmus_communicator_abort(ranks[2]), ISTHMUS_SUCCESS);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(isthmus_communicator_async_error(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_NE(std::string(last_error().message).find("abort was called on rank 2"), std::string::npos);
    EXPECT_EQ(allreduce(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_EQ(standin::context_of(rank)->is_aborted(standin::context_of(rank)->runtime), 1);
  }
  EXPECT_EQ(isthmus_communicator_abort(ranks[2]), ISTHMUS_SUCCESS) << "a second abort changes nothing";
}

TEST(abort, leaves_other_communicators_usable) {
  standin::reset();
  test::ranks first(2, standin::configuration()), second(2, standin::configuration());
  isthmus_communicator_abort(first[0]);
  EXPECT_EQ(allreduce(second[0]), ISTHMUS_SUCCESS);
}

TEST(abort, releases_a_rank_blocked_in_a_backend) {
  std::latch entry_latch(1);
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [&](int rank, const isthmus_operation&) {
    const auto* context = standin::context_of(rank);
    entry_latch.count_down();
    while (context->is_aborted(context->runtime) == 0) std::this_thread::yield();
    return ISTHMUS_ERROR_ABORTED;
  };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  auto waiting = std::async(std::launch::async, [&] { return allreduce(ranks[0]); });
  entry_latch.wait();
  isthmus_communicator_abort(ranks[1]);
  EXPECT_EQ(waiting.get(), ISTHMUS_ERROR_ABORTED);
  // An external watchdog that aborts leaves no other information about the cause.
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_ABORTED);
  const std::string message = last_error().message;
  EXPECT_NE(message.find("rank 1 (pid"), std::string::npos) << message;
  EXPECT_NE(message.find("has not entered allreduce #1"), std::string::npos) << message;
}

TEST(abort, releases_a_rank_blocked_in_a_split) {
  standin::reset();
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_HOST, 60);
  auto waiting = std::async(std::launch::async, [&] {
    isthmus_communicator subcommunicator;
    const auto status = isthmus_communicator_split(ranks[0], 0, 0, &subcommunicator);
    return status;
  });
  std::this_thread::sleep_for(seconds(0.05));
  const auto start = std::chrono::steady_clock::now();
  isthmus_communicator_abort(ranks[1]);
  EXPECT_EQ(waiting.get(), ISTHMUS_ERROR_ABORTED);
  EXPECT_LT(seconds(std::chrono::steady_clock::now() - start).count(), 20);
}

TEST(timeout, ends_a_split_that_one_rank_never_calls) {
  standin::reset();
  test::ranks ranks(3, standin::configuration(), ISTHMUS_PLATFORM_HOST, 0.5);
  const auto start = std::chrono::steady_clock::now();
  test::run_on_each_rank(2, [&](int rank) {
    isthmus_communicator subcommunicator;
    const auto status = isthmus_communicator_split(ranks[rank], 0, 0, &subcommunicator);
    EXPECT_TRUE(status == ISTHMUS_ERROR_TIMEOUT || is_secondary_status(status))
        << "the rank that times out first notifies the other";
    EXPECT_NE(std::string(last_error().message).find("missing: 2"), std::string::npos) << last_error().message;
  });
  EXPECT_LT(seconds(std::chrono::steady_clock::now() - start).count(), 20);
}

TEST(timeout, ends_a_collective_that_one_rank_never_calls) {
  test::ranks ranks(3, test::host_config, ISTHMUS_PLATFORM_HOST, 0.5);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> named_count{0};
  test::run_on_each_rank(2, [&](int rank) {
    const auto status = allreduce(ranks[rank]);
    if (status == ISTHMUS_ERROR_TIMEOUT &&
        std::string(last_error().message).find("rank 2") != std::string::npos)
      ++named_count;
    else
      EXPECT_TRUE(status == ISTHMUS_ERROR_REMOTE || status == ISTHMUS_ERROR_ABORTED) << last_error().message;
  });
  EXPECT_GE(named_count, 1) << "the first rank to time out names the missing rank and notifies the others";
  EXPECT_LT(seconds(std::chrono::steady_clock::now() - start).count(), 20);
  EXPECT_EQ(allreduce(ranks[2]), ISTHMUS_ERROR_ABORTED) << "a late rank does not wait";
}

// A backend that blocks in a native call without a timeout: the watchdog ends the call through abort.
TEST(timeout, ends_a_native_call_that_does_not_return) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [](int, const isthmus_operation&) {
    while (standin::records(event::abort).empty()) std::this_thread::yield();  // like MPI, until it is killed
    return ISTHMUS_ERROR_ABORTED;
  };
  standin::reset(script);
  test::ranks ranks(1, standin::configuration(), ISTHMUS_PLATFORM_HOST, 0.3);
  const auto watched = isthmus::handle_table::instance().share(ranks[0]);
  watched->failures().watch_calls();
  testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(allreduce(ranks[0]), ISTHMUS_ERROR_ABORTED);
  EXPECT_LT(seconds(std::chrono::steady_clock::now() - start).count(), 20);
  EXPECT_GE(seconds(std::chrono::steady_clock::now() - start).count(), 0.3);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("inside allreduce of 4 x float32"), std::string::npos) << log;
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_TIMEOUT);
}

TEST(timeout, watchdog_ignores_quick_calls) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  standin::reset(script);
  test::ranks ranks(1, standin::configuration(), ISTHMUS_PLATFORM_HOST, 0.05);
  const auto watched = isthmus::handle_table::instance().share(ranks[0]);
  watched->failures().watch_calls();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(900);
  while (std::chrono::steady_clock::now() < end)
    ASSERT_EQ(allreduce(ranks[0]), ISTHMUS_SUCCESS) << last_error().message;
}

TEST(handle, destroyed_foreign_and_null_are_rejected) {
  standin::reset();
  test::ranks ranks(1, standin::configuration());
  isthmus_communicator dead = ranks.release(0);
  ASSERT_EQ(isthmus_communicator_destroy(dead), ISTHMUS_SUCCESS);
  int local = 0;
  std::vector<isthmus_communicator> bad{
      dead, nullptr, reinterpret_cast<isthmus_communicator>(&local),
      reinterpret_cast<isthmus_communicator>(~std::uintptr_t{0}),
      reinterpret_cast<isthmus_communicator>(std::uintptr_t{0x49530000000fffff})};
  for (isthmus_communicator handle : bad) {
    EXPECT_EQ(allreduce(handle), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_communicator_rank(handle, &local), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_communicator_abort(handle), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_communicator_async_error(handle), ISTHMUS_ERROR_INVALID_USAGE);
    isthmus_communicator subcommunicator;
    EXPECT_EQ(isthmus_communicator_split(handle, 0, 0, &subcommunicator), ISTHMUS_ERROR_INVALID_USAGE);
    if (handle != nullptr) {
      EXPECT_EQ(isthmus_communicator_destroy(handle), ISTHMUS_ERROR_INVALID_USAGE);
    }
    EXPECT_NE(std::string(last_error().message).find("communicator"), std::string::npos);
  }
  EXPECT_EQ(isthmus_communicator_destroy(nullptr), ISTHMUS_SUCCESS);
}

TEST(handle, destroyed_handle_differs_from_its_successor) {
  standin::reset();
  test::ranks first(1, standin::configuration());
  isthmus_communicator dead = first.release(0);
  isthmus_communicator_destroy(dead);
  test::ranks second(1, standin::configuration());
  EXPECT_EQ(allreduce(second[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(allreduce(dead), ISTHMUS_ERROR_INVALID_USAGE);
}

TEST(create, unsupported_backend_is_dropped_on_all_ranks) {
  standin::script script;
  script.create = [](int rank) { return rank == 1 ? ISTHMUS_ERROR_UNSUPPORTED : ISTHMUS_SUCCESS; };
  script.failure = "no such device";
  standin::reset(script);
  {
    test::ranks ranks(3, standin::configuration());
    ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
    EXPECT_EQ(standin::live_states(), 0);
    std::string info(65536, '\0');
    ASSERT_EQ(isthmus_communicator_info(ranks[0], info.data(), info.size(), nullptr), ISTHMUS_SUCCESS);
    EXPECT_NE(info.find("rank 1: no such device"), std::string::npos) << info;
  }
}

TEST(create, failure_of_a_backend_fails_all_ranks) {
  standin::script script;
  script.create = [](int rank) { return rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_SUCCESS; };
  script.failure = "the library is broken";
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(ranks.message(), "the library is broken");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks[rank], nullptr);
  EXPECT_EQ(standin::live_states(), 0);
}

TEST(create, rejects_two_ranks_in_one_process) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS;
  standin::reset(script);
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_CUDA);
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(ranks.message().find("one rank per process, and this process has 2"), std::string::npos)
      << ranks.message();
}

TEST(create, rejects_devices_of_different_platforms) {
  standin::reset();
  test::scoped_file config(standin::configuration());
  const isthmus_device devices[] = {
      {ISTHMUS_PLATFORM_HOST, 0}, {ISTHMUS_PLATFORM_CUDA, 0}, {ISTHMUS_PLATFORM_HOST, 0}};
  const auto options = test::options_for(config);
  isthmus_communicator ranks[3];
  EXPECT_EQ(isthmus_communicator_create_all(3, devices, &options, ranks), ISTHMUS_ERROR_UNSUPPORTED);
  const std::string message = last_error().message;
  EXPECT_NE(message.find("it supports one platform per communicator, and the ranks use several"),
            std::string::npos)
      << message;
}

struct creation_result {
  isthmus_status status;
  std::string message;
};

// Creates a communicator with one config per rank and returns each rank's result.
std::vector<creation_result> create_with_configs(const std::vector<std::string>& configs) {
  isthmus_unique_id id;
  EXPECT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  std::vector<creation_result> results(configs.size());
  const int size = static_cast<int>(configs.size());
  test::run_on_each_rank(size, [&](int rank) {
    test::scoped_file file(configs[static_cast<std::size_t>(rank)]);
    const auto options = test::options_for(file);
    isthmus_communicator communicator;
    const auto status = isthmus_communicator_create(&id, rank, size, &options, &communicator);
    results[static_cast<std::size_t>(rank)] = {status, status == ISTHMUS_SUCCESS ? "" : last_error().message};
    EXPECT_EQ(communicator == nullptr, status != ISTHMUS_SUCCESS);
    isthmus_communicator_destroy(communicator);
  });
  return results;
}

TEST(create, rejects_ranks_with_different_rules) {
  standin::reset();
  const std::string rule = "[[rule]]\ncollective = \"reduce\"\nuse = \"shm\"\n";
  for (const auto& result : create_with_configs(
           {standin::configuration(), standin::configuration(), standin::configuration() + rule})) {
    EXPECT_EQ(result.status, ISTHMUS_ERROR_MISMATCH);
    EXPECT_NE(result.message.find("differ from rank 0: 2"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("collective=reduce use=shm"), std::string::npos) << result.message;
  }
}

TEST(create, reports_one_bad_config_on_all_ranks) {
  standin::reset();
  const auto start = std::chrono::steady_clock::now();
  const auto results =
      create_with_configs({standin::configuration(), "nonsense = 1\n", standin::configuration()});
  EXPECT_EQ(results[1].status, ISTHMUS_ERROR_CONFIG);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].status, ISTHMUS_ERROR_REMOTE);
    EXPECT_NE(results[static_cast<std::size_t>(rank)].message.find("rank 1"), std::string::npos);
  }
  EXPECT_LT(seconds(std::chrono::steady_clock::now() - start).count(), 8) << "no rank waits for the timeout";
}

TEST(create, rejects_invalid_arguments) {
  standin::reset();
  test::scoped_file config(standin::configuration());
  auto options = test::options_for(config);
  isthmus_unique_id id{};
  isthmus_communicator communicator;
  const auto expect = [](isthmus_status status, const char* text) {
    EXPECT_EQ(status, ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find(text), std::string::npos) << last_error().message;
  };
  expect(isthmus_communicator_create(nullptr, 0, 1, &options, &communicator), "id is NULL");
  expect(isthmus_communicator_create(&id, 0, 1, &options, nullptr), "communicator is NULL");
  expect(isthmus_communicator_create(&id, 0, 0, &options, &communicator), "size = 0");
  expect(isthmus_communicator_create(&id, 2, 2, &options, &communicator), "rank = 2");
  expect(isthmus_communicator_create(&id, -1, 2, &options, &communicator), "rank = -1");
  expect(isthmus_communicator_create(&id, 0, 1, &options, &communicator), "not an id of Isthmus");
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  id.bytes[20] ^= 1;
  expect(isthmus_communicator_create(&id, 0, 1, &options, &communicator), "damaged");
  options.struct_bytes = 4;
  const isthmus_device host{};
  expect(isthmus_communicator_create_all(1, &host, &options, &communicator), "struct_bytes = 4");
  options = test::options_for(config, -1);
  expect(isthmus_communicator_create_all(1, &host, &options, &communicator), "timeout_s = -1");
  const isthmus_device bad{static_cast<isthmus_platform>(99), 0};
  expect(isthmus_communicator_create_all(1, &bad, nullptr, &communicator), "device.platform = 99");
  expect(isthmus_communicator_create_all(1, nullptr, nullptr, &communicator), "devices is NULL");
  expect(isthmus_unique_id_create("0.0.0.0", &id), "wildcard");
  expect(isthmus_unique_id_create("127.0.0.1:", &id), "port is empty");
  expect(isthmus_unique_id_create("127.0.0.1:65536", &id), "port is not a number");
  expect(isthmus_unique_id_create("::1", &id), "brackets");
}

TEST(create, reports_addresses_it_cannot_listen_on) {
  isthmus_unique_id id{};
  const auto expect = [&](const std::string& address, const std::string& text) {
    EXPECT_EQ(isthmus_unique_id_create(address.c_str(), &id), ISTHMUS_ERROR_SYSTEM) << address;
    EXPECT_NE(std::string(last_error().message).find(text), std::string::npos) << last_error().message;
    EXPECT_NE(std::string(last_error().hint).find("a free port"), std::string::npos) << last_error().hint;
  };
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof here;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&here), bytes), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &bytes), 0);
  const std::string port = std::to_string(ntohs(here.sin_port));
  expect("127.0.0.1:" + port, "cannot listen on 127.0.0.1 port " + port + ": Address already in use");
  ::close(listener);
  expect("192.0.2.1", "cannot listen on 192.0.2.1 port 0");  // an address reserved for documentation
}

}  // namespace
