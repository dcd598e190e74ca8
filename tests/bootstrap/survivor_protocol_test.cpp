// Survivor protocol: agreement, excluded ranks, refusals without a majority, and the fallback store.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_store.hpp"

namespace {

using namespace isthmus;
using ranks = std::vector<int>;

// Known states of the ranks that do not participate.
using peer_states = std::map<int, peer_state>;

survivor_round round_of(int rank, int size, const peer_states& known, double wait_s = 20) {
  const auto peer_state_of = [known](int peer_rank) {
    return known.contains(peer_rank) ? known.at(peer_rank) : peer_state::unknown;
  };
  return {"here", rank, size, wait_s, peer_state_of};
}

TEST(survivors, agree_once_all_states_are_known) {
  const auto keys = make_local_store();
  const peer_states known{{1, peer_state::exited}, {3, peer_state::disconnected}};
  test::run_on_each_rank(5, [&](int rank) {
    if (known.contains(rank)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank));
    EXPECT_EQ(agree_on_survivors(*keys, round_of(rank, 5, known)), (ranks{0, 2, 4}));
  });
}

TEST(survivors, exclude_a_rank_that_joined_and_exited) {
  const auto keys = make_local_store();
  keys->set("here/here/2", test::bytes("\x01\x01\x01"));
  test::run_on_each_rank(2, [&](int rank) {
    EXPECT_EQ(agree_on_survivors(*keys, round_of(rank, 3, {{2, peer_state::exited}})), (ranks{0, 1}));
  });
}

TEST(survivors, first_proposal_wins_and_late_rank_fails) {
  const auto keys = make_local_store();
  const auto early = round_of(0, 2, {{1, peer_state::exited}});  // wrong, but this rank cannot know that
  EXPECT_EQ(agree_on_survivors(*keys, early), ranks{0});
  const auto error = test::error_of([&] { agree_on_survivors(*keys, round_of(1, 2, {})); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("the other ranks continued without rank 1"), std::string::npos);
  EXPECT_EQ(agree_on_survivors(*keys, early), ranks{0}) << "the decision does not change";
}

struct majority_case {
  int rank, size;
  peer_states known;
  bool may_continue;
};

// One rank on its own that knows nothing else about the others.
TEST(survivors, only_the_majority_continues) {
  const majority_case cases[] = {
      {0, 1, {}, true},
      {0, 2, {}, true},
      {1, 2, {}, false},
      {1, 2, {{0, peer_state::exited}}, true},
      {1, 2, {{0, peer_state::disconnected}}, false},
      {0, 3, {}, false},
      {0, 3, {{2, peer_state::exited}}, true},
      {1, 3, {{0, peer_state::exited}}, true},
      {2, 3, {{0, peer_state::exited}}, false},
  };
  for (const majority_case& each : cases) {
    SCOPED_TRACE(fmt::format("rank {} of {}", each.rank, each.size));
    const auto keys = make_local_store();
    const auto round = round_of(each.rank, each.size, each.known, 0.05);
    const auto error = test::error_of([&] { EXPECT_EQ(agree_on_survivors(*keys, round), ranks{each.rank}); });
    EXPECT_EQ(error.status, each.may_continue ? ISTHMUS_SUCCESS : ISTHMUS_ERROR_TIMEOUT) << error.message;
  }
}

// An excluded rank joins in another store, which only contains what the other ranks know about it.
TEST(survivors, excluded_rank_stays_excluded) {
  const auto keys = make_local_store();
  test::run_on_each_rank(3, [&](int rank) {
    auto round = round_of(rank, 3, {});
    if (rank == 0) round.members = {1, 1, 0};
    std::vector<int> survivors_seen;
    const auto error = test::error_of([&] { survivors_seen = agree_on_survivors(*keys, round); });
    EXPECT_EQ(error.status, rank == 2 ? ISTHMUS_ERROR_REMOTE : ISTHMUS_SUCCESS) << error.message;
    EXPECT_EQ(survivors_seen, rank == 2 ? ranks{} : (ranks{0, 1}));
  });
}

// A process that stands for a rank's process and can be killed.
class child_process {
 public:
  child_process() {
    std::string program = "sleep", argument = "600";
    char* const arguments[] = {program.data(), argument.data(), nullptr};
    if (posix_spawnp(&m_pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0)
      throw std::runtime_error("cannot run the program sleep");
  }
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process() { end(); }

  pid_t pid() const { return m_pid; }
  void end() {
    if (std::exchange(m_ended, true)) return;
    kill(m_pid, SIGKILL);
    waitpid(m_pid, nullptr, 0);
  }

 private:
  pid_t m_pid = 0;
  bool m_ended = false;
};

// Another rank exits while the new communicator is created. Rank `done` already has the new communicator; the
// other rank could not create it and shrinks the old one again.
TEST(survivors, meet_from_old_and_new_communicator) {
  for (const int done : {0, 1}) {
    SCOPED_TRACE(done);
    child_process second_lost, first_lost;
    const auto keys = make_local_store();
    std::barrier both_ready(2);
    first_lost.end();
    test::run_on_each_rank(2, [&](int rank) {
      auto before = make_store_bootstrap(keys, "scope", rank, 4, 20);
      std::vector<rank_process> processes(4);
      processes[2].pid = second_lost.pid();
      processes[3].pid = first_lost.pid();
      before->watch_processes(processes);
      if (rank == 0) keys->set("scope/s0/here/2", test::bytes("\x01\x01\x01\x01"));
      survivors first = before->shrink(20);
      EXPECT_EQ(first.ranks, (ranks{0, 1, 2}));
      both_ready.arrive_and_wait();
      if (rank == 0) second_lost.end();
      both_ready.arrive_and_wait();
      if (rank == done) before.reset();
      survivors second = (rank == done ? first.control : before)->shrink(20);
      EXPECT_EQ(second.ranks, (ranks{0, 1}));
      const int own_value = 7 + rank;
      int all[2]{};
      second.control->allgather(std::as_bytes(std::span(&own_value, 1)),
                                std::as_writable_bytes(std::span(all)));
      EXPECT_EQ(all[0], 7);
      EXPECT_EQ(all[1], 8);
    });
  }
}

TEST(survivors, set_first_keeps_the_first_value) {
  const store_address address = parse_unique_id(start_tcp_store(nullptr));
  for (const auto& keys : {make_local_store(), connect_tcp_store(address, 0, 1, 5)}) {
    keys->set_if_absent("key", test::bytes("first"));
    keys->set_if_absent("key", test::bytes("other"));
    EXPECT_EQ(test::get(*keys, "key", 5, 5), "first");
  }
}

TEST(survivors, hint_names_missing_set_first) {
  isthmus_store_table table{};
  table.struct_bytes =
      offsetof(isthmus_store_table, set_if_absent);  // as in a program built for an older version
  table.set = [](void*, const char*, const void*, std::size_t) { return 0; };
  table.get = [](void*, const char*, void*, std::size_t, double) { return 1; };
  table.set_if_absent = [](void*, const char*, const void*, std::size_t) { return 0; };  // must not be read
  const auto keys = make_user_store(&table);
  const auto error = test::error_of([&] { agree_on_survivors(*keys, round_of(0, 1, {})); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.hint).find("set_if_absent"), std::string::npos) << error.hint;
}

TEST(survivors, lost_user_store_is_reported_with_hint) {
  isthmus_store_table table{};
  table.struct_bytes = sizeof table;
  table.set = table.set_if_absent = [](void*, const char*, const void*, std::size_t) { return 3; };
  table.get = [](void*, const char*, void*, std::size_t, double) { return 2; };
  const auto single_rank = make_store_bootstrap(make_user_store(&table), "scope", 0, 2, 5);
  const auto error = test::error_of([&] { single_rank->shrink(5); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("the store of the ranks is lost"), std::string::npos);
  EXPECT_NE(std::string(error.hint).find("a process that outlives the ranks"), std::string::npos) << error.hint;
}

// The connection of a rank on another node can break while the rank continues.
TEST(survivors, disconnected_rank_has_exited_only_on_this_node) {
  for (const pid_t pid : {0, getpid()}) {
    SCOPED_TRACE(pid);
    const store_address address = parse_unique_id(start_tcp_store(nullptr));
    std::vector<rank_process> processes(2);
    processes[1].pid = pid;
    const rendezvous both(connect_tcp_store(address, 0, 2, 5), {0, 1}, "scope", 0, processes, nullptr);
    auto other = connect_tcp_store(address, 1, 2, 5);
    EXPECT_EQ(both.peer_state_of(1), peer_state::unknown);
    other.reset();
    for (int i = 0; i < 1000 && both.peer_state_of(1) == peer_state::unknown; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(both.peer_state_of(1), pid == 0 ? peer_state::disconnected : peer_state::exited);
  }
}

// Rank 0 serves the fallback store; rank 1 connects before and after that.
TEST(survivors, fallback_store_replaces_lost_store) {
  const store_address address = parse_unique_id(start_tcp_store(nullptr));
  const auto first = connect_tcp_store(address, 0, 2, 5), second = connect_tcp_store(address, 1, 2, 5);
  const auto own = first->make_fallback_store();
  ASSERT_NE(own, nullptr);
  EXPECT_STREQ(own->address().host, "127.0.0.1");
  const auto error = test::error_of([&] { second->connect_fallback_store(own->address(), 1, 2, 0.2); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_TIMEOUT) << "not served yet: " << error.message;
  own->serve(5);
  const auto first_client = first->connect_fallback_store(own->address(), 0, 2, 5);
  const auto second_client = second->connect_fallback_store(own->address(), 1, 2, 5);
  first_client->set("key", test::bytes("value"));
  EXPECT_EQ(test::get(*second_client, "key", 5, 5), "value");
  const store_address address_with_id_secret{own->address().host, own->address().port, address.secret};
  EXPECT_EQ(test::error_of([&] { connect_tcp_store(address_with_id_secret, 1, 2, 5); }).status,
            ISTHMUS_ERROR_REMOTE);
}

}  // namespace
