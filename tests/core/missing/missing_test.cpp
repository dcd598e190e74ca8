// Missing ranks on several nodes: a backend reports the ranks that it waits for. Those that abort as well are
// cleared, and the ranks that do not report are named.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tcp_store.hpp"
#include "core/support.hpp"
#include "topology/topology.hpp"

namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

constexpr double default_timeout_s = 20;  // a rank waits 1 s of it for reports of its peers

// One process: its node and its number of ranks.
struct process_spec {
  const char* node;
  int ranks;
};

// The ranks of one process.
struct local_ranks {
  int number;
  int first;  // rank
  std::vector<isthmus_communicator> ranks;
  topology::rendezvous& all;
};

isthmus_status sum(isthmus_communicator rank) {
  static thread_local float values[4];
  return isthmus_allreduce(values, values, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr);
}

std::vector<int> failed_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}

// Reports a failure like a backend that timed out waiting for these ranks.
isthmus_status report_unresponsive(int rank, const std::vector<int>& ranks,
                                   isthmus_status status = ISTHMUS_ERROR_TIMEOUT) {
  const isthmus_backend_context& context = *standin::context_of(rank);
  return context.fail_with_ranks(context.runtime, ranks.data(), ranks.size(), status, 0, "standin:1", nullptr,
                                 "rank %d waited too long", rank);
}

using enqueue_function = std::function<isthmus_status(int rank)>;

standin::script script_with(enqueue_function calls) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_MULTI_NODE;
  script.failure = "";
  script.enqueue = [calls = std::move(calls)](int rank, const isthmus_operation&) { return calls(rank); };
  return script;
}

// A store that all ranks reach, but that fails queries for the reports of aborted ranks.
class mute_store {
 public:
  mute_store(const isthmus_unique_id& id, int rank, int size)
      : m_keys(isthmus::connect_tcp_store(isthmus::parse_unique_id(id), rank, size, default_timeout_s)) {
    m_table.struct_bytes = sizeof m_table;
    m_table.context = this;
    m_table.set = [](void* self, const char* key, const void* value, std::size_t bytes) {
      return keys(
          self, [&](isthmus::store& store) { store.set(key, {static_cast<const std::byte*>(value), bytes}); });
    };
    m_table.get = [](void* self, const char* key, void* value, std::size_t bytes, double wait_s) {
      if (std::strstr(key, "given_up") != nullptr) return 2;
      return keys(self, [&](isthmus::store& store) {
        store.get(key, {static_cast<std::byte*>(value), bytes}, wait_s);
      });
    };
  }
  const isthmus_store_table* table() const { return &m_table; }

 private:
  template <typename Use>
  static int keys(void* self, Use&& use) {
    try {
      use(*static_cast<mute_store*>(self)->m_keys);
      return 0;
    } catch (const isthmus::error& failure) {
      return failure.info().status == ISTHMUS_ERROR_TIMEOUT ? 1 : 2;
    }
  }

  std::shared_ptr<isthmus::store> m_keys;
  isthmus_store_table m_table{};
};

struct scenario {
  std::vector<process_spec> processes;
  enqueue_function calls;
  std::function<isthmus_status()> group_end;
  bool is_store_mute = false;
  int killed_count = 0;
  double timeout_s = default_timeout_s;
};

// Runs `work` in every process once all communicators exist. A process stays alive until all others are done.
void run_processes(const scenario& setup, const std::function<void(const local_ranks&)>& work) {
  const int processes = static_cast<int>(setup.processes.size());
  const int size = std::accumulate(setup.processes.begin(), setup.processes.end(), 0,
                                   [](int sum, const process_spec& each) { return sum + each.ranks; });
  auto& all = topology::rendezvous::create(processes);
  auto& done = *new (topology::map_shared(sizeof(std::atomic<int>)))
                   std::atomic<int>{0};  // the first process serves the store
  topology::child_processes running;
  int first = 0;
  for (int number = 0; number < processes; ++number) {
    const process_spec local = setup.processes[static_cast<std::size_t>(number)];
    running.start(number, [&, local, number, first] {
      setenv("ISTHMUS_NODE", local.node, 1);
      auto script = script_with(setup.calls);
      script.group_end = setup.group_end;
      standin::reset(script);
      test::scoped_file config(standin::configuration());
      const isthmus_unique_id id = all.new_unique_id(number);
      local_ranks process_ranks{number, first,
                                std::vector<isthmus_communicator>(static_cast<std::size_t>(local.ranks)), all};
      std::vector<std::unique_ptr<mute_store>> stores(process_ranks.ranks.size());
      test::run_on_each_rank(local.ranks, [&](int index) {
        const auto slot = static_cast<std::size_t>(index);
        const auto options = test::options_for(config, setup.timeout_s);
        if (setup.is_store_mute) stores[slot] = std::make_unique<mute_store>(id, first + index, size);
        const auto status =
            setup.is_store_mute
                ? isthmus_communicator_create_store(stores[slot]->table(), first + index, size, &options,
                                                    &process_ranks.ranks[slot])
                : isthmus_communicator_create(&id, first + index, size, &options, &process_ranks.ranks[slot]);
        EXPECT_EQ(status, ISTHMUS_SUCCESS) << test::last_error().message;
      });
      topology::remove_recordings();
      all.wait();
      if (!testing::Test::HasFailure()) work(process_ranks);
      ++done;
      while (done < processes - setup.killed_count) std::this_thread::sleep_for(1ms);
      for (auto* const rank : process_ranks.ranks) isthmus_communicator_destroy(rank);
      return testing::Test::HasFailure() ? 1 : 0;
    });
    first += local.ranks;
  }
  int killed_count = 0;
  for (const auto& exit_report : running.join()) {
    if (WIFSIGNALED(exit_report.status))
      ++killed_count;
    else
      EXPECT_EQ(exit_report.failures(), 0) << "process " << exit_report.process;
  }
  EXPECT_EQ(killed_count, setup.killed_count);
}

// The late rank fails immediately, because the backends of the others have notified it.
TEST(missing, late_rank_is_named_by_all_ranks) {
  const auto calls = [](int rank) {
    return report_unresponsive(rank, {1}, rank == 1 ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_TIMEOUT);
  };
  run_processes({{{"a", 1}, {"b", 1}, {"c", 1}}, calls, {}}, [](const local_ranks& local) {
    if (local.number == 1) std::this_thread::sleep_for(150ms);
    EXPECT_NE(sum(local.ranks[0]), ISTHMUS_SUCCESS);
    EXPECT_EQ(failed_ranks(), std::vector{1}) << local.number << ": " << test::last_error().message;
  });
}

// Ranks that wait for it may time out slightly earlier than the rank itself.
TEST(missing, rank_that_waited_as_long_is_not_late) {
  constexpr double timeout_s = 6;
  const auto calls = [](int rank) {
    const isthmus_backend_context& context = *standin::context_of(rank);
    const auto begin = clock_type::now();
    while (seconds_since(begin) < timeout_s / 2 + 0.5 && context.is_aborted(context.runtime) == 0)
      std::this_thread::sleep_for(1ms);
    return report_unresponsive(rank, {1}, rank == 1 ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_TIMEOUT);
  };
  scenario setup{{{"a", 1}, {"b", 1}}, calls, {}};
  setup.timeout_s = timeout_s;
  run_processes(setup, [](const local_ranks& local) {
    EXPECT_NE(sum(local.ranks[0]), ISTHMUS_SUCCESS);
    const std::string text = test::last_error().message;
    EXPECT_EQ(failed_ranks(), std::vector<int>()) << local.number << ": " << text;
    EXPECT_NE(text.find("rank 1 reports a wait as well: check the network between the nodes"),
              std::string::npos)
        << text;
  });
}

void expect_message(const std::vector<int>& dead, const std::string& text) {
  const auto calls = [](int rank) { return report_unresponsive(rank, {3}, ISTHMUS_ERROR_REMOTE); };
  scenario setup{{{"a", 1}, {"a", 1}, {"b", 1}, {"b", 1}}, calls, {}};
  setup.killed_count = static_cast<int>(dead.size());
  run_processes(setup, [&](const local_ranks& local) {
    if (std::ranges::find(dead, local.number) != dead.end()) raise(SIGKILL);
    if (local.number != 0) return;       // busy with other work
    std::this_thread::sleep_for(500ms);  // until the store has detected the lost ranks
    EXPECT_EQ(sum(local.ranks[0]), ISTHMUS_ERROR_REMOTE);
    EXPECT_EQ(std::string(test::last_error().message).find(text), 0U) << test::last_error().message;
    EXPECT_EQ(failed_ranks(), dead);
  });
}

TEST(missing, live_rank_on_the_same_node_is_not_reported) {
  expect_message({3}, "rank 3 is missing: rank 0 waited");
}

TEST(missing, killed_node_is_reported) {
  expect_message({2, 3}, "rank 3 is missing, and rank 2 of the same node does not respond: rank 0 waited");
}

// Programs exit at their first error, so the aborted rank may be gone when peers query it.
TEST(missing, aborted_rank_that_exited_is_not_missing) {
  auto& has_given_up = *new (topology::map_shared(sizeof(std::atomic<bool>))) std::atomic<bool>{false};
  const auto calls = [](int rank) {  // a root cause, so that the first rank does not wait for one
    return report_unresponsive(rank, {3}, rank == 0 ? ISTHMUS_ERROR_INTERNAL : ISTHMUS_ERROR_REMOTE);
  };
  scenario setup{{{"a", 1}, {"a", 1}, {"b", 1}, {"b", 1}}, calls, {}};
  setup.killed_count = 2;
  run_processes(setup, [&](const local_ranks& local) {
    if (local.number == 3) raise(SIGKILL);
    if (local.number == 2) {
      EXPECT_EQ(sum(local.ranks[0]), ISTHMUS_ERROR_REMOTE);
      has_given_up = true;
      raise(SIGKILL);
    }
    if (local.number != 0) return;
    while (!has_given_up) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(500ms);  // until the store has detected its exit
    EXPECT_EQ(sum(local.ranks[0]), ISTHMUS_ERROR_INTERNAL);
    EXPECT_EQ(std::string(test::last_error().message).find("rank 3 is missing: rank 0 waited"), 0U)
        << test::last_error().message;
    EXPECT_EQ(failed_ranks(), std::vector{3});
  });
}

TEST(missing, ranks_of_one_process_query_once) {
  const auto calls = [](int rank) {
    if (rank < 4) report_unresponsive(rank, {4});
    return ISTHMUS_SUCCESS;
  };
  run_processes({{{"a", 4}, {"b", 1}}, calls, [] { return ISTHMUS_ERROR_TIMEOUT; }},
                [](const local_ranks& local) {
                  if (local.number != 0) return;
                  float values[4][4];
                  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
                  for (std::size_t rank = 0; rank < 4; ++rank)
                    EXPECT_EQ(isthmus_allreduce(values[rank], values[rank], 4, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                                local.ranks[rank], nullptr),
                              ISTHMUS_SUCCESS);
                  const auto begin = clock_type::now();
                  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_TIMEOUT);
                  EXPECT_LT(seconds_since(begin), 2) << "one query per rank would take 4 s";
                  EXPECT_EQ(failed_ranks(), std::vector{4}) << test::last_error().message;
                });
}

// Two ranks on one node and one on another; the store does not answer queries, as with MPI.
scenario mute_store_scenario(enqueue_function calls) {
  scenario setup{{{"a", 1}, {"a", 1}, {"b", 1}}, std::move(calls), {}};
  setup.is_store_mute = true;
  return setup;
}

// Expects that the next call of this process fails, names `ranks` and says `text`.
void expect_attribution(const local_ranks& local, const std::vector<int>& ranks, const std::string& text) {
  EXPECT_NE(sum(local.ranks[0]), ISTHMUS_SUCCESS);
  const std::string message = test::last_error().message;
  EXPECT_EQ(failed_ranks(), ranks) << local.number << ": " << message;
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

TEST(missing, node_peers_are_queried_after_a_failed_query) {
  const auto calls = [](int rank) {
    return report_unresponsive(rank, rank == 0 ? std::vector{2, 1} : std::vector{2});
  };
  run_processes(mute_store_scenario(calls), [](const local_ranks& local) {
    if (local.number == 2) return;
    expect_attribution(local, {2},
                       "rank 2 did not report, and the bootstrap cannot query whether it is also waiting");
  });
}

// As `hierarchical` over MPI: rank 1 waits for rank 0, which waits inside MPI for rank 2.
TEST(missing, rank_of_this_node_in_the_same_call_is_not_named) {
  const auto calls = [](int rank) {
    const isthmus_backend_context& context = *standin::context_of(rank);
    if (rank == 1) {
      std::this_thread::sleep_for(200ms);  // until rank 0 is in the call
      return report_unresponsive(1, {0});
    }
    while (context.is_aborted(context.runtime) == 0) std::this_thread::sleep_for(1ms);
    return ISTHMUS_ERROR_ABORTED;
  };
  run_processes(mute_store_scenario(calls), [](const local_ranks& local) {
    if (local.number == 2) return;
    expect_attribution(local, {}, "rank 0 is in the same call and may wait for a rank of another node");
  });
}

TEST(missing, rank_of_this_node_in_an_earlier_call_is_named) {
  const auto calls = [](int rank) { return report_unresponsive(rank, {0}); };
  run_processes(mute_store_scenario(calls), [](const local_ranks& local) {
    if (local.number == 1) expect_attribution(local, {0}, "");
  });
}

// A failure stores at most sixteen failed ranks.
TEST(missing, missing_rank_after_sixteen_waiting_ones) {
  const auto calls = [](int rank) {
    std::vector<int> other_ranks(17);
    std::iota(other_ranks.begin(), other_ranks.end(), 1);
    return report_unresponsive(rank, rank == 0 ? other_ranks : std::vector{0});
  };
  run_processes({{{"a", 1}, {"b", 16}, {"c", 1}}, calls, {}}, [](const local_ranks& local) {
    if (local.number == 2) return;
    test::run_on_each_rank(static_cast<int>(local.ranks.size()), [&](int index) {
      EXPECT_NE(sum(local.ranks[static_cast<std::size_t>(index)]), ISTHMUS_SUCCESS);
      // On a loaded machine, a rank that receives the root cause too late names no rank. Rank 0 is blocked and
      // must never be named.
      if (local.number == 0 || !failed_ranks().empty()) {
        EXPECT_EQ(failed_ranks(), std::vector{17}) << local.first + index << ": " << test::last_error().message;
      }
    });
  });
}

}  // namespace
