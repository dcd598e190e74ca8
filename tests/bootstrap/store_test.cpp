// Contract of the stores, and bootstraps on them: exchange, split, timeout and cancellation.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <numeric>
#include <thread>

#include "base/process.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_store.hpp"

namespace {

using namespace isthmus;

enum class store_kind { local, tcp };

// One store per rank, as if each rank were in its own process.
class store_test : public testing::TestWithParam<store_kind> {
 protected:
  std::vector<std::shared_ptr<store>> make(int size) {
    std::vector<std::shared_ptr<store>> all;
    if (GetParam() == store_kind::local) {
      all.assign(static_cast<std::size_t>(size), make_local_store());
    } else {
      const auto address = parse_unique_id(start_tcp_store(nullptr));
      for (int rank = 0; rank < size; ++rank) all.push_back(connect_tcp_store(address, rank, size, 5));
    }
    return all;
  }
  std::vector<std::unique_ptr<bootstrap>> make_bootstraps(int size, double timeout_s = 5) {
    std::vector<std::unique_ptr<bootstrap>> all;
    const auto shared = make(size);
    for (int rank = 0; rank < size; ++rank)
      all.push_back(
          make_store_bootstrap(shared[static_cast<std::size_t>(rank)], "isthmus", rank, size, timeout_s));
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(both, store_test, testing::Values(store_kind::local, store_kind::tcp),
                         [](const auto& info) { return info.param == store_kind::local ? "local" : "tcp"; });

TEST(store_bootstrap, disconnected_rank_is_named_before_timeout) {
  const auto address = parse_unique_id(start_tcp_store(nullptr));
  std::vector<std::unique_ptr<bootstrap>> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(make_store_bootstrap(connect_tcp_store(address, rank, 4, 60), "isthmus", rank, 4, 60));
  // In the subcommunicators the ranks have different numbers than in the store.
  std::vector<std::unique_ptr<bootstrap>> parts(4);
  test::run_on_each_rank(4, [&](int rank) {
    parts[static_cast<std::size_t>(rank)] =
        ranks[static_cast<std::size_t>(rank)]->split(rank == 0 ? 1 : 0, -rank);
  });
  ranks[1].reset();
  parts[1].reset();
  test::run_on_each_rank(4, [&](int rank) {
    if (rank < 2) return;
    std::byte sent_value{}, all[3];
    const auto failure =
        test::error_of([&] { parts[static_cast<std::size_t>(rank)]->allgather({&sent_value, 1}, all); });
    EXPECT_EQ(failure.status, ISTHMUS_ERROR_REMOTE) << failure.message;
    EXPECT_NE(std::string(failure.message).find("rank 2 exited"), std::string::npos) << failure.message;
  });
}

TEST(store_bootstrap, killed_process_is_named_before_timeout) {
  const pid_t child = fork();
  if (child == 0)
    while (true) pause();
  const auto single_rank = make_store_bootstrap(make_local_store(), "isthmus", 0, 2, 60);
  const std::array<isthmus::rank_process, 2> both{
      {{getpid(), process_start_time(getpid())}, {child, process_start_time(child)}}};
  single_rank->watch_processes(both);
  EXPECT_EQ(read_process_state(child), process_state::alive);
  kill(child, SIGKILL);  // it stays a zombie until the end of the test
  std::byte sent_value{}, all[2];
  const auto failure = test::error_of([&] { single_rank->allgather({&sent_value, 1}, all); });
  EXPECT_EQ(failure.status, ISTHMUS_ERROR_REMOTE) << failure.message;
  EXPECT_NE(std::string(failure.message).find("rank 1 exited"), std::string::npos) << failure.message;
  waitpid(child, nullptr, 0);
}

// A store whose connection breaks shortly before its process, which stands for rank 1, exits.
class breaking_store final : public store {
 public:
  explicit breaking_store(pid_t server) : m_server(server) {}
  void set(const std::string&, std::span<const std::byte>) override {}
  void set_if_absent(const std::string&, std::span<const std::byte>) override {}
  void get(const std::string&, std::span<std::byte>, double) override {
    if (!m_killer.joinable())
      m_killer = std::jthread([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        kill(m_server, SIGKILL);
      });
    throw make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "the connection to the store was lost");
  }

 private:
  const pid_t m_server;
  std::jthread m_killer;
};

TEST(store_bootstrap, process_that_exits_after_its_connections_is_named) {
  const pid_t child = fork();
  if (child == 0)
    while (true) pause();
  const auto single_rank = make_store_bootstrap(std::make_shared<breaking_store>(child), "isthmus", 0, 2, 60);
  const std::array<isthmus::rank_process, 2> both{
      {{getpid(), process_start_time(getpid())}, {child, process_start_time(child)}}};
  single_rank->watch_processes(both);
  std::byte sent_value{}, all[2];
  const auto failure = test::error_of([&] { single_rank->allgather({&sent_value, 1}, all); });
  EXPECT_NE(std::string(failure.message).find("rank 1 exited"), std::string::npos) << failure.message;
  waitpid(child, nullptr, 0);
}

// A child process that serves a store and is killed by the destructor.
class store_process {
 public:
  store_process() {
    std::array<int, 2> id_pipe{};
    if (pipe(id_pipe.data()) != 0) return;
    m_child = fork();
    if (m_child == 0) {
      const isthmus_unique_id id = start_tcp_store(nullptr);
      if (write(id_pipe[1], &id, sizeof id) != sizeof id) _exit(1);
      while (true) pause();
    }
    EXPECT_EQ(read(id_pipe[0], &m_id, sizeof m_id), static_cast<ssize_t>(sizeof m_id));
    for (const int fd : id_pipe) close(fd);
  }
  ~store_process() {
    kill(m_child, SIGKILL);
    waitpid(m_child, nullptr, 0);
  }
  store_process(const store_process&) = delete;
  store_process& operator=(const store_process&) = delete;

  store_address address() const { return parse_unique_id(m_id); }
  void stop() const {
    kill(m_child, SIGSTOP);
    EXPECT_EQ(waitpid(m_child, nullptr, WUNTRACED), m_child);  // returns after all of its threads have stopped
  }
  void resume() const { kill(m_child, SIGCONT); }

 private:
  pid_t m_child = -1;
  isthmus_unique_id m_id{};
};

// A waiting rank sends many requests in a row; it must not wait for each of them until its own timeout.
TEST(store_process, stopped_process_is_waited_for_once) {
  constexpr double timeout_s = 12;  // a quarter of it is the reply timeout
  const store_process process;
  const auto keys = connect_tcp_store(process.address(), 0, 1, timeout_s);
  keys->set("a", test::bytes("x"));
  EXPECT_EQ(test::get(*keys, "a", 1, timeout_s), "x");
  process.stop();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 8; ++i) {
    const auto failure = test::error_of([&] { test::get(*keys, "a", 1, 0); });
    EXPECT_EQ(failure.status, ISTHMUS_ERROR_TIMEOUT) << failure.message;
    EXPECT_EQ(failure.native_code, ETIMEDOUT) << "the store did not answer; the key is not known to be missing";
  }
  const auto rank = make_store_bootstrap(keys, "isthmus", 0, 2, timeout_s);
  rank->mark_aborted();
  EXPECT_EQ(rank->has_aborted(1, 0.1), std::nullopt);
  EXPECT_LT(test::seconds_since(start), timeout_s);
  process.resume();
  EXPECT_EQ(test::get(*keys, "a", 1, timeout_s), "x");
  EXPECT_EQ(test::get(*keys, "a", 1, 0), "x");
}

// Ranks 0 and 1 have arrived, but only the stopped store knows that.
TEST(store_process, stopped_process_names_no_missing_rank) {
  const store_process process;
  const auto first = make_store_bootstrap(connect_tcp_store(process.address(), 0, 3, 1), "isthmus", 0, 3, 1);
  const auto second = make_store_bootstrap(connect_tcp_store(process.address(), 1, 3, 1), "isthmus", 1, 3, 1);
  process.stop();
  test::run_on_each_rank(2, [&](int rank) {
    std::vector<std::byte> sent_value(8), received(24);
    const auto failure = test::error_of([&] { (rank == 0 ? first : second)->allgather(sent_value, received); });
    EXPECT_EQ(failure.status, ISTHMUS_ERROR_TIMEOUT) << failure.message;
    EXPECT_TRUE(failure.failed_ranks().empty()) << failure.message;
    const std::string expected =
        fmt::format("the store at 127.0.0.1 port {} does not answer", process.address().port);
    EXPECT_NE(std::string(failure.message).find(expected), std::string::npos) << failure.message;
    EXPECT_EQ(std::string(failure.message).find("missing: "), std::string::npos) << failure.message;
  });
  process.resume();
}

// A reply after the timeout of one request does not make the store unresponsive.
TEST(store_process, short_pause_makes_no_rank_missing) {
  const store_process process;
  const auto first = make_store_bootstrap(connect_tcp_store(process.address(), 0, 2, 20), "isthmus", 0, 2, 20);
  const auto second = make_store_bootstrap(connect_tcp_store(process.address(), 1, 2, 20), "isthmus", 1, 2, 20);
  first->mark_aborted();
  second->mark_aborted();
  ASSERT_EQ(first->has_aborted(1, 5), true);
  for (const double wait_s : {0.02, 0.0}) {
    process.stop();
    std::jthread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      process.resume();
    });
    EXPECT_EQ(first->has_aborted(1, wait_s), true) << wait_s;
  }
}

// A user's store for one process; its operations can fail on request.
struct failing_store {
  std::shared_ptr<store> keys = make_local_store();
  bool is_lost = false, has_set_first = true;
  int get_count = 0;

  isthmus_store_table table() {
    isthmus_store_table table{};
    table.struct_bytes = sizeof table;
    table.context = this;
    table.set = [](void* self, const char* key, const void* value, std::size_t bytes) {
      static_cast<failing_store*>(self)->keys->set(key, {static_cast<const std::byte*>(value), bytes});
      return 0;
    };
    table.get = [](void* self, const char* key, void* value, std::size_t bytes, double timeout_s) {
      auto& self_store = *static_cast<failing_store*>(self);
      ++self_store.get_count;
      if (self_store.is_lost) return 2;
      return test::error_of([&] {
               self_store.keys->get(key, {static_cast<std::byte*>(value), bytes}, timeout_s);
             }).status == ISTHMUS_SUCCESS
                 ? 0
                 : 1;
    };
    table.set_if_absent = [](void* self, const char* key, const void* value, std::size_t bytes) {
      auto& self_store = *static_cast<failing_store*>(self);
      if (!self_store.has_set_first) return 2;
      self_store.keys->set_if_absent(key, {static_cast<const std::byte*>(value), bytes});
      return 0;
    };
    return table;
  }
};

TEST(user_store, lost_store_is_not_polled_repeatedly) {
  failing_store lost;
  lost.is_lost = true;
  const isthmus_store_table table = lost.table();
  const auto rank = make_store_bootstrap(make_user_store(&table), "isthmus", 0, 2, 20);
  EXPECT_EQ(rank->wait_for_failure(1), std::nullopt);
  EXPECT_LT(lost.get_count, 100);
}

// Like PyTorch's stores without compareSet.
TEST(user_store, publishes_a_failure_without_set_first) {
  failing_store backing;
  backing.has_set_first = false;
  const isthmus_store_table table = backing.table();
  std::vector<std::unique_ptr<bootstrap>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(make_store_bootstrap(make_user_store(&table), "isthmus", rank, 2, 20));
  EXPECT_TRUE(ranks[0]->publish_failure(make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "first").info()));
  EXPECT_TRUE(ranks[1]->publish_failure(make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "second").info()));
  const auto failure = ranks[1]->wait_for_failure(1);
  ASSERT_TRUE(failure.has_value());
  EXPECT_STREQ(failure->message, "first");
}

TEST_P(store_test, value_of_one_rank_is_read_by_another) {
  const auto all = make(2);
  all[0]->set("a", test::bytes("hello"));
  EXPECT_EQ(test::get(*all[1], "a", 5, 5), "hello");
  all[0]->set("empty", {});
  EXPECT_EQ(test::get(*all[1], "empty", 0, 5), "");
}

TEST_P(store_test, get_waits_for_set) {
  const auto all = make(2);
  auto values = std::async(std::launch::async, [&] { return test::get(*all[1], "late", 4, 10); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  all[0]->set("late", test::bytes("here"));
  EXPECT_EQ(values.get(), "here");
}

TEST_P(store_test, get_fails_at_its_timeout) {
  const auto all = make(2);
  const auto start = std::chrono::steady_clock::now();
  const auto error = test::error_of([&] { test::get(*all[1], "never", 4, 0.1); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_TIMEOUT);
  EXPECT_NE(std::string(error.message).find("never"), std::string::npos);
  EXPECT_GE(test::seconds_since(start), 0.09);
  EXPECT_LT(test::seconds_since(start), 20);
  all[0]->set("never", test::bytes("well"));  // the store still works
  EXPECT_EQ(test::get(*all[1], "never", 4, 5), "well");
}

TEST_P(store_test, get_without_timeout_finds_existing_key) {
  const auto all = make(2);
  all[0]->set("a", test::bytes("x"));
  EXPECT_EQ(test::get(*all[0], "a", 1, 0), "x");
  EXPECT_EQ(test::error_of([&] { test::get(*all[0], "b", 1, 0); }).status, ISTHMUS_ERROR_TIMEOUT);
}

TEST_P(store_test, get_with_another_size_fails) {
  const auto all = make(1);
  all[0]->set("a", test::bytes("four"));
  EXPECT_EQ(test::error_of([&] { test::get(*all[0], "a", 3, 1); }).status, ISTHMUS_ERROR_MISMATCH);
}

TEST_P(store_test, erased_keys_do_not_exist) {
  const auto all = make(1);
  all[0]->set("a", test::bytes("x"));
  all[0]->erase("a");
  EXPECT_EQ(test::error_of([&] { test::get(*all[0], "a", 1, 0); }).status, ISTHMUS_ERROR_TIMEOUT);
}

// Threads share a rank's connection and wait for keys that are set in the opposite order.
TEST_P(store_test, several_threads_wait_on_one_connection) {
  const auto all = make(2);
  constexpr int n = 8;
  std::vector<std::future<std::string>> values;
  for (int i = 0; i < n; ++i)
    values.push_back(
        std::async(std::launch::async, [&, i] { return test::get(*all[1], "k" + std::to_string(i), 1, 10); }));
  for (int i = n - 1; i >= 0; --i) all[0]->set("k" + std::to_string(i), test::bytes(std::to_string(i)));
  for (int i = 0; i < n; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)].get(), std::to_string(i));
}

// Only one of the threads may read at a time, or the parts of large values are mixed up.
TEST_P(store_test, threads_of_one_connection_get_large_values) {
  const auto all = make(2);
  constexpr int threads = 8, rounds = 20;
  const auto value_of = [](int thread, int round) {
    return std::string(100'000, static_cast<char>('a' + (thread * rounds + round) % 26));
  };
  std::vector<std::future<int>> wrong_values;
  for (int thread = 0; thread < threads; ++thread)
    wrong_values.push_back(std::async(std::launch::async, [&, thread] {
      int count = 0;
      for (int round = 0; round < rounds; ++round) {
        const std::string expected = value_of(thread, round);
        const std::string key = fmt::format("{}/{}", thread, round);
        const auto failure =
            test::error_of([&] { count += test::get(*all[1], key, expected.size(), 20) != expected ? 1 : 0; });
        count += failure.status != ISTHMUS_SUCCESS ? 1 : 0;
      }
      return count;
    }));
  for (int round = 0; round < rounds; ++round)
    for (int thread = 0; thread < threads; ++thread)
      all[0]->set(fmt::format("{}/{}", thread, round), test::bytes(value_of(thread, round)));
  for (auto& each : wrong_values) EXPECT_EQ(each.get(), 0);
}

TEST_P(store_test, large_values_arrive_complete) {
  const auto all = make(2);
  std::string large(3 << 20, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 13);
  std::jthread setter([&] { all[0]->set("large", test::bytes(large)); });
  EXPECT_EQ(test::get(*all[1], "large", large.size(), 10), large);
}

TEST_P(store_test, repeated_allgather_is_in_rank_order) {
  const auto ranks = make_bootstraps(5);
  test::run_on_each_rank(5, [&](int rank) {
    for (int round = 0; round < 30; ++round) {
      const int sent_value = rank * 1000 + round;
      std::vector<int> all(5);
      ranks[static_cast<std::size_t>(rank)]->allgather(std::as_bytes(std::span(&sent_value, 1)),
                                                       std::as_writable_bytes(std::span(all)));
      for (int other = 0; other < 5; ++other)
        ASSERT_EQ(all[static_cast<std::size_t>(other)], other * 1000 + round);
    }
  });
}

TEST_P(store_test, split_orders_by_key_and_rank) {
  const auto ranks = make_bootstraps(6);
  test::run_on_each_rank(6, [&](int rank) {
    const int key = rank == 0 ? 5 : 1;  // rank 0 is last in its subcommunicator; the others keep their order
    auto child_group = ranks[static_cast<std::size_t>(rank)]->split(rank == 5 ? -1 : rank % 2, key);
    if (rank == 5) {
      EXPECT_EQ(child_group, nullptr);
      return;
    }
    ASSERT_NE(child_group, nullptr);
    const std::vector<std::vector<int>> members{{2, 4, 0}, {1, 3}};
    const auto& expected = members[static_cast<std::size_t>(rank % 2)];
    EXPECT_EQ(child_group->size(), static_cast<int>(expected.size()));
    EXPECT_EQ(expected.at(static_cast<std::size_t>(child_group->rank())), rank);
    std::vector<int> all(expected.size());
    child_group->allgather(std::as_bytes(std::span(&rank, 1)), std::as_writable_bytes(std::span(all)));
    EXPECT_EQ(all, expected);
  });
}

TEST_P(store_test, released_scope_is_removed) {
  const auto all = make(2);
  for (const char* key : {"a:0", "a:1/2", "a/b:0", "ab:0"}) all[0]->set(key, test::bytes("x"));
  const auto has_key = [&](const char* key) {
    return test::error_of([&] { test::get(*all[0], key, 1, 0); }).status == ISTHMUS_SUCCESS;
  };
  all[0]->release("a", 2);
  EXPECT_TRUE(has_key("a:0")) << "one rank may still read it";
  all[0]->release("a", 2);
  EXPECT_FALSE(has_key("a:0"));
  EXPECT_FALSE(has_key("a:1/2"));
  EXPECT_FALSE(has_key("a:released"));
  EXPECT_TRUE(has_key("a/b:0"));
  EXPECT_TRUE(has_key("ab:0"));
}

TEST_P(store_test, ranks_release_the_keys_of_a_split) {
  const auto all = make(2);
  std::vector<std::unique_ptr<bootstrap>> ranks, children(2);
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(make_store_bootstrap(all[static_cast<std::size_t>(rank)], "a", rank, 2, 10));
  test::run_on_each_rank(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    children[index] = ranks[index]->split(0, 0);
    std::vector<std::byte> values(2);
    children[index]->allgather(std::array{std::byte{1}}, values);
  });
  const auto has_key = [&] {
    return test::error_of([&] { test::get(*all[0], "a/1c0:0/0", 1, 0); }).status == ISTHMUS_SUCCESS;
  };
  EXPECT_TRUE(has_key());
  children.clear();
  for (int i = 0; i < 100 && has_key(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(has_key());
}

TEST_P(store_test, missing_ranks_are_named) {
  const auto ranks = make_bootstraps(4, 0.4);
  const auto start = std::chrono::steady_clock::now();
  test::run_on_each_rank(4, [&](int rank) {
    if (rank == 0 || rank == 3) return;
    std::vector<std::byte> sent_value(8), all(32);
    const auto error =
        test::error_of([&] { ranks[static_cast<std::size_t>(rank)]->allgather(sent_value, all); });
    EXPECT_TRUE(error.status == ISTHMUS_ERROR_TIMEOUT || error.status == ISTHMUS_ERROR_REMOTE)
        << "the first rank that times out reports it to the others";
    EXPECT_NE(std::string(error.message).find("missing: 0, 3"), std::string::npos) << error.message;
    EXPECT_TRUE(std::ranges::equal(error.failed_ranks(), std::array{0, 3})) << error.message;
  });
  EXPECT_LT(test::seconds_since(start), 20);
}

// Rank 1 gives up long before rank 0, and rank 2 never calls.
TEST_P(store_test, own_failure_reaches_waiting_ranks) {
  const auto stores = make(3);
  test::run_on_each_rank(2, [&](int rank) {
    const auto own =
        make_store_bootstrap(stores[static_cast<std::size_t>(rank)], "isthmus", rank, 3, rank == 0 ? 30 : 0.3);
    std::vector<std::byte> sent_value(8), all(24);
    const auto error = test::error_of([&] { own->allgather(sent_value, all); });
    EXPECT_NE(std::string(error.message).find("rank 1 of 3 waited 0.3 s"), std::string::npos) << error.message;
  });
}

TEST_P(store_test, aborted_ranks_differ_from_running_ranks) {
  const auto ranks = make_bootstraps(3);
  EXPECT_EQ(ranks[0]->has_aborted(1, 0), std::nullopt) << "unknown until the rank itself has aborted";
  ranks[0]->mark_aborted();
  EXPECT_EQ(ranks[0]->has_aborted(1, 0), false);
  auto waiting = std::async(std::launch::async, [&] { return ranks[0]->has_aborted(1, 20); });
  ranks[1]->mark_aborted();
  ranks[1]->mark_aborted();  // has no further effect
  EXPECT_EQ(waiting.get(), true);
  ranks[2]->mark_aborted();
  EXPECT_EQ(ranks[2]->has_aborted(1, 0), true);
  EXPECT_EQ(ranks[1]->has_aborted(0, 0), true);
}

TEST_P(store_test, cancel_ends_waits) {
  const auto ranks = make_bootstraps(2, 60);
  auto waiting = std::async(std::launch::async, [&] {
    std::vector<std::byte> sent_value(8), all(16);
    return test::error_of([&] { ranks[0]->allgather(sent_value, all); }).status;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  ranks[0]->cancel();
  EXPECT_EQ(waiting.get(), ISTHMUS_ERROR_ABORTED);
  EXPECT_LT(test::seconds_since(start), 20);
}

TEST(unique_id, contains_address_and_secret) {
  const auto id = start_tcp_store("localhost:0");
  const auto address = parse_unique_id(id);
  EXPECT_EQ(address.host, "localhost");
  EXPECT_NE(address.port, 0);
  EXPECT_NE(address.secret, parse_unique_id(start_tcp_store(nullptr)).secret) << "every id has its own secret";
  EXPECT_NE(address.secret, store_secret{});
}

TEST(unique_id, every_damaged_byte_is_detected) {
  const auto id = start_tcp_store(nullptr);
  for (std::size_t i = 0; i < sizeof id.bytes; ++i) {
    auto damaged = id;
    damaged.bytes[i] ^= 0x10;
    EXPECT_EQ(test::error_of([&] { parse_unique_id(damaged); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT) << i;
  }
}

TEST(unique_id, other_version_is_reported) {
  auto old = start_tcp_store(nullptr);
  old.bytes[4] = 1;  // the version follows the magic, little-endian
  const auto error = test::error_of([&] { parse_unique_id(old); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("its format is 1, this library uses 3"), std::string::npos)
      << error.message;
}

}  // namespace
