// Over several nodes: of ranks that a backend suspects those that give up, too, are cleared; who does not is
// named.
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
#include "bootstrap/unique_id.hpp"
#include "core/support.hpp"
#include "world/world.hpp"

namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

constexpr double usual_timeout_s = 20;  // of which a rank waits 1 s for others to give up

// One process: where it runs, and how many of the ranks it has.
struct process {
  const char* node;
  int ranks;
};

// What one process does with its ranks.
struct member {
  int number;
  int first;  // rank
  std::vector<isthmus_communicator> ranks;
  world::meeting& all;
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

// As a backend does that has waited in vain for those.
isthmus_status suspect(int rank, const std::vector<int>& those, isthmus_status status = ISTHMUS_ERROR_TIMEOUT) {
  const isthmus_backend_context& context = *standin::context_of(rank);
  return context.fail_with_ranks(context.runtime, those.data(), those.size(), status, 0, "standin:1", nullptr,
                         "rank %d waited in vain", rank);
}

using enqueue = std::function<isthmus_status(int rank)>;

standin::script calling(enqueue calls) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_MULTI_NODE;
  script.failure = "";
  script.enqueue = [calls = std::move(calls)](int rank, const isthmus_operation&) { return calls(rank); };
  return script;
}

// The store that all reach, but for the words of those who give up.
class deaf_store {
 public:
  deaf_store(const isthmus_unique_id& id, int rank, int size)
      : m_keys(isthmus::connect_tcp_store(isthmus::parse_unique_id(id), rank, size, usual_timeout_s)) {
    m_table.struct_bytes = sizeof m_table;
    m_table.context = this;
    m_table.set = [](void* self, const char* key, const void* value, std::size_t bytes) {
      return keys(
          self, [&](isthmus::store& those) { those.set(key, {static_cast<const std::byte*>(value), bytes}); });
    };
    m_table.get = [](void* self, const char* key, void* value, std::size_t bytes, double patience_s) {
      if (std::strstr(key, "given_up") != nullptr) return 2;
      return keys(self, [&](isthmus::store& those) {
        those.get(key, {static_cast<std::byte*>(value), bytes}, patience_s);
      });
    };
  }
  const isthmus_store_table* table() const { return &m_table; }

 private:
  template <typename Use>
  static int keys(void* self, Use&& use) {
    try {
      use(*static_cast<deaf_store*>(self)->m_keys);
      return 0;
    } catch (const isthmus::error& failure) {
      return failure.info().status == ISTHMUS_ERROR_TIMEOUT ? 1 : 2;
    }
  }

  std::shared_ptr<isthmus::store> m_keys;
  isthmus_store_table m_table{};
};

struct play {
  std::vector<process> processes;
  enqueue calls;
  std::function<isthmus_status()> group_end;
  bool store_is_deaf = false;
  int killed = 0;
  double timeout_s = usual_timeout_s;
};

// Every process works on its ranks once all are made; it stays until all others are done.
void on_processes(const play& with, const std::function<void(const member&)>& work) {
  const int processes = static_cast<int>(with.processes.size());
  const int size = std::accumulate(with.processes.begin(), with.processes.end(), 0,
                                   [](int sum, const process& each) { return sum + each.ranks; });
  auto& all = world::meeting::make(processes);
  auto& done =
      *new (world::map_shared(sizeof(std::atomic<int>))) std::atomic<int>{0};  // the first has the store
  world::children running;
  int first = 0;
  for (int number = 0; number < processes; ++number) {
    const process own = with.processes[static_cast<std::size_t>(number)];
    running.start(number, [&, own, number, first] {
      setenv("ISTHMUS_NODE", own.node, 1);
      auto script = calling(with.calls);
      script.group_end = with.group_end;
      standin::reset(script);
      test::scoped_file config(standin::configuration());
      const isthmus_unique_id id = all.fresh_id(number);
      member mine{number, first, std::vector<isthmus_communicator>(static_cast<std::size_t>(own.ranks)), all};
      std::vector<std::unique_ptr<deaf_store>> stores(mine.ranks.size());
      test::on_each(own.ranks, [&](int index) {
        const auto at = static_cast<std::size_t>(index);
        const auto options = test::options_for(config, with.timeout_s);
        if (with.store_is_deaf) stores[at] = std::make_unique<deaf_store>(id, first + index, size);
        const auto status =
            with.store_is_deaf
                ? isthmus_communicator_create_store(stores[at]->table(), first + index, size, &options,
                                                    &mine.ranks[at])
                : isthmus_communicator_create(&id, first + index, size, &options, &mine.ranks[at]);
        EXPECT_EQ(status, ISTHMUS_SUCCESS) << test::last_error().message;
      });
      world::leave_no_recording();
      all.wait();
      if (!testing::Test::HasFailure()) work(mine);
      ++done;
      while (done < processes - with.killed) std::this_thread::sleep_for(1ms);
      for (auto* const rank : mine.ranks) isthmus_communicator_destroy(rank);
      return testing::Test::HasFailure() ? 1 : 0;
    });
    first += own.ranks;
  }
  int killed = 0;
  for (const auto& ended : running.join()) {
    if (WIFSIGNALED(ended.status))
      ++killed;
    else
      EXPECT_EQ(ended.failures(), 0) << "process " << ended.process;
  }
  EXPECT_EQ(killed, with.killed);
}

// It fails at once, as the others' backends have told it.
TEST(missing, who_comes_just_after_the_others_timed_out_is_named_by_all) {
  const auto calls = [](int rank) {
    return suspect(rank, {1}, rank == 1 ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_TIMEOUT);
  };
  on_processes({{{"a", 1}, {"b", 1}, {"c", 1}}, calls, {}}, [](const member& own) {
    if (own.number == 1) std::this_thread::sleep_for(150ms);
    EXPECT_NE(sum(own.ranks[0]), ISTHMUS_SUCCESS);
    EXPECT_EQ(failed_ranks(), std::vector{1}) << own.number << ": " << test::last_error().message;
  });
}

// Who waits for it may time out a moment before it does itself.
TEST(missing, who_has_waited_as_long_as_the_others_is_none_that_came_late) {
  constexpr double timeout_s = 6;
  const auto calls = [](int rank) {
    const isthmus_backend_context& context = *standin::context_of(rank);
    const auto begin = clock_type::now();
    while (seconds_since(begin) < timeout_s / 2 + 0.5 && context.is_aborted(context.runtime) == 0)
      std::this_thread::sleep_for(1ms);
    return suspect(rank, {1}, rank == 1 ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_TIMEOUT);
  };
  play with{{{"a", 1}, {"b", 1}}, calls, {}};
  with.timeout_s = timeout_s;
  on_processes(with, [](const member& own) {
    EXPECT_NE(sum(own.ranks[0]), ISTHMUS_SUCCESS);
    EXPECT_EQ(failed_ranks(), std::vector<int>()) << own.number << ": " << test::last_error().message;
  });
}

void expect_beside(const std::vector<int>& dead, const std::string& text) {
  const auto calls = [](int rank) { return suspect(rank, {3}, ISTHMUS_ERROR_REMOTE); };
  play with{{{"a", 1}, {"a", 1}, {"b", 1}, {"b", 1}}, calls, {}};
  with.killed = static_cast<int>(dead.size());
  on_processes(with, [&](const member& own) {
    if (std::ranges::find(dead, own.number) != dead.end()) raise(SIGKILL);
    if (own.number != 0) return;         // busy with its own work
    std::this_thread::sleep_for(500ms);  // until the store has seen who is gone
    EXPECT_EQ(sum(own.ranks[0]), ISTHMUS_ERROR_REMOTE);
    EXPECT_EQ(std::string(test::last_error().message).find(text), 0U) << test::last_error().message;
    EXPECT_EQ(failed_ranks(), std::vector{3});
  });
}

TEST(missing, a_living_rank_beside_a_killed_one_is_not_told_of) {
  expect_beside({3}, "rank 3 is missing: rank 0 waited");
}

TEST(missing, a_whole_node_that_was_killed_is_told_of) {
  expect_beside({2, 3}, "rank 3 is missing, and rank 2 of the same node is not heard of: rank 0 waited");
}

// Programs end at their first error, so it may be gone when others ask.
TEST(missing, who_gave_up_beside_a_killed_rank_and_then_left_is_heard_of) {
  auto& has_given_up = *new (world::map_shared(sizeof(std::atomic<bool>))) std::atomic<bool>{false};
  const auto calls = [](int rank) {  // a cause, so that the first does not listen for one
    return suspect(rank, {3}, rank == 0 ? ISTHMUS_ERROR_INTERNAL : ISTHMUS_ERROR_REMOTE);
  };
  play with{{{"a", 1}, {"a", 1}, {"b", 1}, {"b", 1}}, calls, {}};
  with.killed = 2;
  on_processes(with, [&](const member& own) {
    if (own.number == 3) raise(SIGKILL);
    if (own.number == 2) {
      EXPECT_EQ(sum(own.ranks[0]), ISTHMUS_ERROR_REMOTE);
      has_given_up = true;
      raise(SIGKILL);
    }
    if (own.number != 0) return;
    while (!has_given_up) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(500ms);  // until the store has seen that it is gone
    EXPECT_EQ(sum(own.ranks[0]), ISTHMUS_ERROR_INTERNAL);
    EXPECT_EQ(std::string(test::last_error().message).find("rank 3 is missing: rank 0 waited"), 0U)
        << test::last_error().message;
    EXPECT_EQ(failed_ranks(), std::vector{3});
  });
}

TEST(missing, ranks_of_a_process_ask_after_them_once) {
  const auto calls = [](int rank) {
    if (rank < 4) suspect(rank, {4});
    return ISTHMUS_SUCCESS;
  };
  on_processes({{{"a", 4}, {"b", 1}}, calls, [] { return ISTHMUS_ERROR_TIMEOUT; }}, [](const member& own) {
    if (own.number != 0) return;
    float values[4][4];
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    for (std::size_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(isthmus_allreduce(values[rank], values[rank], 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, own.ranks[rank],
                                  nullptr),
                ISTHMUS_SUCCESS);
    const auto begin = clock_type::now();
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_TIMEOUT);
    EXPECT_LT(seconds_since(begin), 2) << "a second for each rank would be 4";
    EXPECT_EQ(failed_ranks(), std::vector{4}) << test::last_error().message;
  });
}

// Over MPI and over stores without an answer.
TEST(missing, ranks_of_its_own_node_are_asked_behind_one_that_can_not_be) {
  const auto calls = [](int rank) { return suspect(rank, rank == 0 ? std::vector{2, 1} : std::vector{2}); };
  play with{{{"a", 1}, {"a", 1}, {"b", 1}}, calls, {}};
  with.store_is_deaf = true;
  on_processes(with, [](const member& own) {
    if (own.number == 2) return;
    EXPECT_NE(sum(own.ranks[0]), ISTHMUS_SUCCESS);
    const std::string text = test::last_error().message;
    EXPECT_EQ(failed_ranks(), std::vector{2}) << own.number << ": " << text;
    EXPECT_NE(text.find("no word from rank 2, and no way to ask whether it waits"), std::string::npos) << text;
  });
}

// A failure holds sixteen numbers.
TEST(missing, one_behind_sixteen_that_wait_is_found) {
  const auto calls = [](int rank) {
    std::vector<int> others(17);
    std::iota(others.begin(), others.end(), 1);
    return suspect(rank, rank == 0 ? others : std::vector{0});
  };
  on_processes({{{"a", 1}, {"b", 16}, {"c", 1}}, calls, {}}, [](const member& own) {
    if (own.number == 2) return;
    test::on_each(static_cast<int>(own.ranks.size()), [&](int index) {
      EXPECT_NE(sum(own.ranks[static_cast<std::size_t>(index)]), ISTHMUS_SUCCESS);
      // Who hears of the cause too late on a busy machine names nobody; never rank 0, which waits as well.
      if (own.number == 0 || !failed_ranks().empty()) {
        EXPECT_EQ(failed_ranks(), std::vector{17}) << own.first + index << ": " << test::last_error().message;
      }
    });
  });
}

}  // namespace
