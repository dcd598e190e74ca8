// Exceptions of a backend: the runtime catches them and reports a failure on every rank, in this
// process and in others.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "base/error.hpp"
#include "bootstrap/tcp_store.hpp"
#include "core/support.hpp"
#include "topology/topology.hpp"

namespace {

using standin::event;
using test::last_error;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* cause = "the cable was pulled";

isthmus_status throw_on_rank_1(int rank) {
  if (rank == 1) throw std::runtime_error(cause);
  return ISTHMUS_SUCCESS;
}

isthmus_status sum(isthmus_communicator rank) {
  static thread_local float send[4], recv[4];
  return isthmus_allreduce(send, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr);
}

isthmus_status split_all(isthmus_communicator rank) {
  isthmus_communicator subcommunicator = nullptr;
  const isthmus_status status = isthmus_communicator_split(rank, 0, 0, &subcommunicator);
  isthmus_communicator_destroy(subcommunicator);
  return status;
}

// Rank 1's backend threw in `function`: later calls of every rank report it.
void expect_aborted(const test::ranks& ranks, const std::string& function) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(last_error().message,
                AllOf(HasSubstr("on rank 1"), HasSubstr(function + " of backend standin"), HasSubstr(cause)));
  }
}

TEST(exception, from_enqueue_aborts_all_ranks) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) { return throw_on_rank_1(rank); };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(sum(ranks[1]), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(last_error().rank, 1);
  EXPECT_EQ(last_error().collective, ISTHMUS_ALLREDUCE);
  EXPECT_STREQ(last_error().backend, "standin");
  EXPECT_THAT(last_error().message, AllOf(HasSubstr("enqueue of backend standin"), HasSubstr(cause)));
  EXPECT_THAT(last_error().hint, HasSubstr("context->fail"));
  expect_aborted(ranks, "enqueue");
}

TEST(exception, keeps_type_name_and_native_code) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) -> isthmus_status {
    if (rank == 0) throw 42;
    throw std::system_error(ENODEV, std::generic_category(), "open");
  };
  standin::reset(script);
  test::ranks first(1, standin::configuration());
  EXPECT_EQ(sum(first[0]), ISTHMUS_ERROR_BACKEND);
  EXPECT_THAT(last_error().message, HasSubstr("an exception of type int"));
  test::ranks second(2, standin::configuration());
  EXPECT_EQ(sum(second[1]), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(last_error().native_code, ENODEV);
}

TEST(exception, from_enqueue_ends_a_group_of_blocking_ranks) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [](int rank, const isthmus_operation&) {
    throw_on_rank_1(rank);
    const auto* context = standin::context_of(rank);
    while (context->is_aborted(context->runtime) == 0) std::this_thread::yield();  // until rank 1 aborts
    return ISTHMUS_ERROR_ABORTED;
  };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(sum(ranks[rank]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_BACKEND) << "the root cause, not its consequences";
  EXPECT_THAT(last_error().message, HasSubstr(cause));
  expect_aborted(ranks, "enqueue");
}

void fail_in_group(standin::script script, const char* function) {
  standin::reset(std::move(script));
  test::ranks ranks(2, standin::configuration());
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(sum(ranks[rank]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_BACKEND);
  EXPECT_THAT(last_error().message, AllOf(HasSubstr(function), HasSubstr(cause)));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(last_error().message, HasSubstr(cause));
  }
}

TEST(exception, from_group_start_or_group_end_aborts) {
  standin::script starts, end_script;
  starts.group_start = end_script.group_end = [] { return throw_on_rank_1(1); };
  fail_in_group(starts, "group_start of backend standin");
  fail_in_group(end_script, "group_end of backend standin");
}

TEST(exception, from_poll_aborts_all_ranks) {
  standin::script script;
  script.poll = throw_on_rank_1;
  standin::reset(script);
  test::ranks ranks(3, standin::configuration());
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_communicator_async_error(ranks[1]), ISTHMUS_ERROR_BACKEND);
  EXPECT_THAT(last_error().message, HasSubstr(cause));
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(last_error().rank, 1);
  expect_aborted(ranks, "poll");
}

TEST(exception, from_synchronize_aborts_all_ranks) {
  standin::script script;
  script.synchronize = throw_on_rank_1;
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(isthmus_communicator_destroy(ranks.release(1)), ISTHMUS_ERROR_BACKEND);
  EXPECT_THAT(last_error().message, AllOf(HasSubstr("synchronize of backend standin"), HasSubstr(cause)));
  EXPECT_EQ(sum(ranks[0]), ISTHMUS_ERROR_ABORTED);
  EXPECT_THAT(last_error().message, HasSubstr(cause));
}

TEST(exception, from_supports_aborts_all_ranks) {
  standin::script script;
  script.supports = [](const isthmus_operation&, int) -> const char* { throw std::runtime_error(cause); };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(sum(ranks[1]), ISTHMUS_ERROR_BACKEND);
  expect_aborted(ranks, "supports");
  EXPECT_TRUE(standin::records(event::enqueue).empty());
}

TEST(exception, from_split_aborts_all_ranks) {
  standin::script script;
  script.split = [](int rank, int, int) -> void* {
    throw_on_rank_1(rank);
    return nullptr;
  };
  standin::reset(script);
  test::ranks ranks(3, standin::configuration(), ISTHMUS_PLATFORM_HOST, 60);
  const auto start = std::chrono::steady_clock::now();
  test::run_on_each_rank(3, [&](int rank) {
    EXPECT_EQ(split_all(ranks[rank]), rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(last_error().message, HasSubstr(cause));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "no rank waits for the timeout";
  expect_aborted(ranks, "split");
}

TEST(exception, from_abort_is_ignored) {
  standin::script script;
  script.abort = [](int) { throw 42; };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(isthmus_communicator_abort(ranks[0]), ISTHMUS_SUCCESS);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_ABORTED);
  EXPECT_EQ(standin::records(event::abort).size(), 2u);
}

// Rank 1 throws before an exchange in which the others are already blocked.
TEST(exception, from_create_fails_all_ranks) {
  standin::script script;
  script.exchange_in_create = standin::script::exchange::rank;
  script.create = throw_on_rank_1;
  standin::reset(script);
  const auto start = std::chrono::steady_clock::now();
  test::ranks ranks(3, standin::configuration(), ISTHMUS_PLATFORM_HOST, 60);
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_BACKEND);
  EXPECT_THAT(ranks.message(), AllOf(HasSubstr("create of backend standin"), HasSubstr(cause)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "no rank waits for the timeout";
  EXPECT_EQ(standin::live_states(), 0);
}

// For example, a native library detects the exit of a rank while it waits. The interrupted exchanges
// must not hide it.
TEST(abort, inside_create_is_the_reported_failure) {
  standin::script script;
  script.in_create = [](const isthmus_backend_context& context) {
    if (context.rank != 0) return;
    context.fail(context.runtime, ISTHMUS_ERROR_REMOTE, 0, "standin:2", "scripted hint", "rank 7 exited");
    context.abort_communicator(context.runtime, ISTHMUS_ERROR_REMOTE);
  };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_REMOTE);
  EXPECT_THAT(ranks.message(), HasSubstr("rank 7 exited"));
}

// ---- one process per rank -----------------------------------------------------------------------------------

// Result of a rank in its own process.
struct outcome {
  isthmus_status create_status = ISTHMUS_ERROR_INTERNAL, call_status = ISTHMUS_ERROR_INTERNAL;
  isthmus_error_info error{};
};

outcome run_rank(const isthmus_unique_id& id, int rank, int size, bool uses_split) {
  outcome result;
  test::scoped_file file(standin::configuration());
  const auto options = test::options_for(file, 60);
  isthmus_communicator communicator = nullptr;
  result.create_status = isthmus_communicator_create(&id, rank, size, &options, &communicator);
  if (result.create_status == ISTHMUS_SUCCESS)
    result.call_status = uses_split ? split_all(communicator) : sum(communicator);
  result.error = last_error();
  isthmus_communicator_destroy(communicator);
  return result;
}

std::array<outcome, 3> in_processes(const standin::script& script, bool uses_split = false) {
  constexpr int size = 3;
  standin::reset(script);
  topology::rendezvous& rendezvous_point = topology::rendezvous::create(size);
  auto* const outcomes = reinterpret_cast<outcome*>(topology::map_shared(size * sizeof(outcome)));
  topology::child_processes processes;
  for (int rank = 0; rank < size; ++rank)
    processes.start(rank, [&, rank] {
      const isthmus_unique_id id = rendezvous_point.new_unique_id(rank);
      outcomes[rank] = run_rank(id, rank, size, uses_split);
      rendezvous_point.wait();  // rank 0's process serves the store
      return 0;
    });
  for (const auto& exit_report : processes.join())
    EXPECT_EQ(exit_report.failures(), 0) << "rank " << exit_report.process;
  return {outcomes[0], outcomes[1], outcomes[2]};
}

TEST(exception_in_a_process, from_enqueue_reaches_other_processes) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [](int rank, const isthmus_operation&) {
    throw_on_rank_1(rank);
    const auto* context = standin::context_of(rank);
    while (context->is_aborted(context->runtime) == 0) std::this_thread::yield();
    return ISTHMUS_ERROR_ABORTED;
  };
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = in_processes(script);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "no rank waits for the timeout";
  EXPECT_EQ(outcomes[1].call_status, ISTHMUS_ERROR_BACKEND) << outcomes[1].error.message;
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_EQ(outcomes[rank].create_status, ISTHMUS_SUCCESS) << outcomes[rank].error.message;
    EXPECT_EQ(outcomes[rank].call_status, ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(outcomes[rank].error.message, AllOf(HasSubstr("on rank 1"), HasSubstr(cause)));
  }
}

TEST(exception_in_a_process, from_create_reaches_other_processes) {
  standin::script script;
  script.exchange_in_create = standin::script::exchange::rank;
  script.create = throw_on_rank_1;
  const auto outcomes = in_processes(script);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].create_status, rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_ERROR_REMOTE);
    EXPECT_THAT(outcomes[rank].error.message, HasSubstr(cause));
    if (rank != 1) {
      EXPECT_THAT(outcomes[rank].error.message, HasSubstr("rank 1"));
    }
  }
}

// Rank 1 skips an exchange in which the others are already blocked.
void expect_create_failure(isthmus_status status, standin::script::exchange exchange) {
  SCOPED_TRACE(static_cast<int>(exchange));
  standin::script script;
  script.exchange_in_create = exchange;
  script.failure = "no more endpoints";
  script.create = [status](int rank) { return rank == 1 ? status : ISTHMUS_SUCCESS; };
  const auto outcomes = in_processes(script);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(outcomes[rank].create_status, ISTHMUS_SUCCESS);
    EXPECT_THAT(outcomes[rank].error.message, HasSubstr("no more endpoints"));
    EXPECT_THAT(outcomes[rank].error.message, Not(HasSubstr("a different call")));
    if (rank != 1) {
      EXPECT_EQ(outcomes[rank].create_status, ISTHMUS_ERROR_REMOTE) << outcomes[rank].error.message;
      EXPECT_THAT(outcomes[rank].error.message, HasSubstr("rank 1"));
    }
  }
}

constexpr std::array exchanges_in_create{standin::script::exchange::rank, standin::script::exchange::vote,
                                         standin::script::exchange::heap_block};

TEST(failure_in_create, is_the_reason_on_all_ranks) {
  for (const auto exchange : exchanges_in_create) expect_create_failure(ISTHMUS_ERROR_SYSTEM, exchange);
}

TEST(failure_in_create, of_an_unsupported_rank_is_the_reason) {
  for (const auto exchange : exchanges_in_create) expect_create_failure(ISTHMUS_ERROR_UNSUPPORTED, exchange);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The store of the ranks. Rank 1 can map no more memory as soon as it knows the members.
class limiting_store {
 public:
  limiting_store(const isthmus_unique_id& id, int rank, int size)
      : m_keys(isthmus::connect_tcp_store(isthmus::parse_unique_id(id), rank, size, 60)),
        m_is_limited(rank == 1) {
    m_table.struct_bytes = sizeof m_table;
    m_table.context = this;
    m_table.set = [](void* self, const char* key, const void* value, std::size_t bytes) {
      return use(self,
                 [&](isthmus::store& keys) { keys.set(key, {static_cast<const std::byte*>(value), bytes}); });
    };
    m_table.get = [](void* self, const char* key, void* value, std::size_t bytes, double wait_s) {
      const int result = use(
          self, [&](isthmus::store& keys) { keys.get(key, {static_cast<std::byte*>(value), bytes}, wait_s); });
      if (result == 0 && static_cast<limiting_store*>(self)->m_is_limited &&
          std::strstr(key, ":0/2") != nullptr) {
        const rlimit limit{1, RLIM_INFINITY};
        setrlimit(RLIMIT_AS, &limit);
      }
      return result;
    };
  }
  const isthmus_store_table* table() const { return &m_table; }

 private:
  template <typename Use>
  static int use(void* self, Use&& function) {
    try {
      function(*static_cast<limiting_store*>(self)->m_keys);
      return 0;
    } catch (const isthmus::error& failure) {
      return failure.info().status == ISTHMUS_ERROR_TIMEOUT ? 1 : 2;
    }
  }

  std::shared_ptr<isthmus::store> m_keys;
  const bool m_is_limited;
  isthmus_store_table m_table{};
};

TEST(failure_in_create, of_a_rank_without_memory_is_the_reason) {
  topology::rendezvous& rendezvous_point = topology::rendezvous::create(3);
  auto* const outcomes = reinterpret_cast<outcome*>(topology::map_shared(3 * sizeof(outcome)));
  topology::child_processes processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.start(rank, [&, rank] {
      limiting_store store(rendezvous_point.new_unique_id(rank), rank, 3);
      test::scoped_file file(test::host_config);
      const auto options = test::options_for(file, 60);
      isthmus_communicator communicator = nullptr;
      outcomes[rank].create_status =
          isthmus_communicator_create_store(store.table(), rank, 3, &options, &communicator);
      outcomes[rank].error = last_error();
      rendezvous_point.wait();  // rank 0's process serves the store
      isthmus_communicator_destroy(communicator);
      return 0;
    });
  processes.join();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].create_status, rank == 1 ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_REMOTE);
    EXPECT_THAT(outcomes[rank].error.message, HasSubstr("memory exhausted"));
    if (rank != 1) {
      EXPECT_THAT(outcomes[rank].error.message, HasSubstr("rank 1"));
    }
  }
}
#endif

TEST(plugin_call, ends_soon_after_a_process_exits) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.enqueue = [](int rank, const isthmus_operation&) {
    if (rank == 1) _exit(0);
    const auto* context = standin::context_of(rank);
    while (context->is_aborted(context->runtime) == 0) std::this_thread::yield();
    return ISTHMUS_ERROR_ABORTED;
  };
  standin::reset(script);
  topology::rendezvous& rendezvous_point = topology::rendezvous::create(3);
  auto* const outcomes = reinterpret_cast<outcome*>(topology::map_shared(3 * sizeof(outcome)));
  topology::child_processes processes;
  const auto start = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 3; ++rank)
    processes.start(rank, [&, rank] {
      const isthmus_unique_id id = rendezvous_point.new_unique_id(rank);
      outcomes[rank] = run_rank(id, rank, 3, false);
      return 0;
    });
  processes.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "no rank waits for the timeout";
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_THAT(outcomes[rank].call_status, AnyOf(ISTHMUS_ERROR_REMOTE, ISTHMUS_ERROR_ABORTED))
        << outcomes[rank].error.message;
    EXPECT_THAT(outcomes[rank].error.message, HasSubstr("rank 1"));
  }
}

TEST(plugin_call, that_ignores_the_timeout_is_aborted) {
  std::atomic<bool> is_aborted = false;
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_BLOCKING;
  script.abort = [&](int) { is_aborted = true; };
  script.enqueue = [&](int, const isthmus_operation&) {
    while (!is_aborted) std::this_thread::yield();
    return ISTHMUS_ERROR_ABORTED;
  };
  standin::reset(script);
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_HOST, 0.3);
  test::run_on_each_rank(2, [&](int rank) {
    EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(last_error().message, HasSubstr("longer than the timeout of 0.3 s"));
  });
}

TEST(plugin_call, with_an_unknown_status_names_the_backend) {
  standin::script script;
  script.enqueue = [](int rank, const isthmus_operation&) { return isthmus_status(rank == 0 ? 12345 : -2); };
  standin::reset(script);
  for (const std::string failure : {"", "scripted failure"}) {
    script.failure = failure;
    standin::reset(script);
    for (int rank = 0; rank < 2; ++rank) {
      test::ranks ranks(2, standin::configuration());
      EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_BACKEND);
      EXPECT_THAT(last_error().message,
                  AllOf(HasSubstr(rank == 0 ? "backend standin returned 12345" : "backend standin returned -2"),
                        HasSubstr("allreduce"), HasSubstr(failure)));
      EXPECT_EQ(last_error().native_code, rank == 0 ? 12345 : -2);
    }
  }
}

TEST(exception_in_a_process, from_split_reaches_other_processes) {
  standin::script script;
  script.split = [](int rank, int, int) -> void* {
    throw_on_rank_1(rank);
    return nullptr;
  };
  const auto outcomes = in_processes(script, true);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].call_status, rank == 1 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(outcomes[rank].error.message, HasSubstr(cause));
  }
}

}  // namespace
