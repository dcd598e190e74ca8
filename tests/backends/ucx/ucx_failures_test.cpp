// Failures over UCX: killed and unresponsive ranks, abort, mismatched calls, missing networks and libraries.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "backends/ucx/algorithms.hpp"
#include "rank_runner.hpp"
#include "topology/topology.hpp"

namespace shm_test {
namespace {

using failures = std::vector<std::string>;
using namespace std::chrono_literals;

isthmus_operation operation_of(isthmus_collective collective, std::vector<float>& data, int root = 0) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = data.size();
  operation.root = root;
  operation.send_buf = operation.recv_buf = data.data();
  return operation;
}

bool contains(const std::string& text, const std::string& substring) {
  return text.find(substring) != std::string::npos;
}

run_setup ranks_of(int n, double timeout_s) {
  run_setup s;
  s.ranks = s.processes = n;
  s.timeout_s = timeout_s;
  s.backend = isthmus::ucx_backend();
  return s;
}

struct finish_guard {
  std::atomic<int>& finished_ranks;
  ~finish_guard() { ++finished_ranks; }
};

// Keeps a rank away from the collective until `min_finished` ranks have finished.
void wait_for_finished_ranks(const std::atomic<int>& finished_ranks, int min_finished) {
  while (finished_ranks.load() < min_finished) std::this_thread::sleep_for(20ms);
}

std::atomic<int>& shared_counter() {
  return *new (::topology::map_shared(sizeof(std::atomic<int>))) std::atomic<int>(0);
}

void create(rank& self) { check(self.create() == ISTHMUS_SUCCESS, "create: " + self.failure()); }

// The operation must fail, with an error that contains all `names`.
void expect_failure(rank& self, const isthmus_operation& operation, const std::vector<std::string>& names) {
  const auto status = self.run(operation);
  check(status == ISTHMUS_ERROR_REMOTE || status == ISTHMUS_ERROR_TIMEOUT,
        "status " + std::to_string(status) + ": " + self.failure());
  for (const std::string& name : names) check(contains(self.failure(), name), self.failure());
}

class ucx_failures : public testing::Test {
 protected:
  void SetUp() override {
    const char* named = std::getenv("ISTHMUS_UCX_LIBRARY");
    if (named == nullptr && ::dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD) == nullptr && !is_installed())
      GTEST_SKIP() << "needs libucp.so.0: apt-get install libucx0";
  }
  // Checked in a child process, because this process must not load UCX before it forks its ranks.
  static bool is_installed() { return std::system("ldconfig -p | grep -q libucp.so.0") == 0; }
};

TEST_F(ucx_failures, killed_rank_is_named_on_all_others) {
  std::atomic<int>& ranks_past_first_call = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_SUCCESS, self.failure());
    if (++ranks_past_first_call; self.number() == 2) {
      wait_for_finished_ranks(ranks_past_first_call, 4);  // all ranks have left the first call
      ::kill(::getpid(), SIGKILL);
    }
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"rank 2"});
  };
  EXPECT_EQ(run_ranks(ranks_of(4, 60), body, 2), failures{});
}

TEST_F(ucx_failures, lost_node_names_all_of_its_ranks) {
  run_setup two_machines = ranks_of(4, 8);
  two_machines.node_of = {0, 0, 1, 1};
  std::atomic<int>& finished_ranks = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_SUCCESS, self.failure());
    if (self.number() >= 2) return wait_for_finished_ranks(finished_ranks, 2);
    const finish_guard guard{finished_ranks};
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"ranks 2 and 3"});
  };
  EXPECT_EQ(run_ranks(two_machines, body), failures{});
}

// An MPI bootstrap cannot query ranks of other nodes.
TEST_F(ucx_failures, killed_node_is_listed_without_a_store) {
  run_setup two_machines = ranks_of(4, 60);
  two_machines.node_of = {0, 0, 1, 1};
  two_machines.has_mpi_bootstrap = true;
  std::atomic<int>& ranks_past_first_call = shared_counter();
  std::atomic<int>& finished_ranks = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_SUCCESS, self.failure());
    ++ranks_past_first_call;
    wait_for_finished_ranks(ranks_past_first_call, 4);
    if (self.number() == 3) ::kill(::getpid(), SIGKILL);
    if (self.number() != 0) return wait_for_finished_ranks(finished_ranks, 1);
    const finish_guard guard{finished_ranks};
    expect_failure(self, operation_of(ISTHMUS_RECV, data, 3),
                   {"rank 3 exited", "rank 2 of the same node did not respond either"});
  };
  EXPECT_EQ(run_ranks(two_machines, body, 3), failures{});
}

TEST_F(ucx_failures, timeout_names_the_missing_rank) {
  std::atomic<int>& finished_ranks = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    if (self.number() == 1) return wait_for_finished_ranks(finished_ranks, 2);
    const finish_guard guard{finished_ranks};
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"rank 1"});
  };
  EXPECT_EQ(run_ranks(ranks_of(3, 8), body), failures{});
}

// Both ranks wait for each other and respond to queries: no rank is missing.
TEST_F(ucx_failures, timeout_reports_mutual_wait) {
  const auto body = [](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    const auto status = self.run(operation_of(ISTHMUS_RECV, data, 1 - self.number()));
    check(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE, self.failure());
    check(status == ISTHMUS_ERROR_REMOTE || contains(self.failure(), "all ranks respond"), self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(2, 8), body), failures{});
}

// Data that a rank sent before its exit must arrive. The exit alone is no failure.
TEST_F(ucx_failures, early_exit_after_a_call_is_no_failure) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{1} << 20}) {
    const auto body = [count](rank& self) {
      create(self);
      std::vector<float> data(count, self.number() == 0 ? 3.0f : 0.0f);
      if (self.number() > 0) std::this_thread::sleep_for(300ms);
      check(self.run(operation_of(ISTHMUS_BROADCAST, data)) == ISTHMUS_SUCCESS, self.failure());
      check(data.front() == 3 && data.back() == 3, "wrong data arrived");
    };
    EXPECT_EQ(run_ranks(ranks_of(3, 60), body), failures{}) << count;
  }
}

TEST_F(ucx_failures, abort_releases_all_ranks) {
  std::atomic<int>& finished_ranks = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    if (self.number() == 2) return wait_for_finished_ranks(finished_ranks, 2);
    const finish_guard guard{finished_ranks};
    if (self.number() == 1) {
      std::this_thread::sleep_for(200ms);
      self.abort();
    }
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_ERROR_ABORTED, self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(3, 60), body), failures{});
}

TEST_F(ucx_failures, different_lengths_are_a_mismatch) {
  const auto body = [](rank& self) {
    create(self);
    std::vector<float> data(self.number() == 0 ? 100 : 200, 1);
    const auto status =
        self.run(operation_of(self.number() == 0 ? ISTHMUS_SEND : ISTHMUS_RECV, data, 1 - self.number()));
    if (self.number() == 0) return;  // the send may have succeeded
    check(status == ISTHMUS_ERROR_MISMATCH, self.failure());
    check(contains(self.failure(), "rank 0 sent a different number of bytes than the 800"), self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(2, 60), body), failures{});
}

// Creates a communicator with an option on all ranks; the error must contain all `texts` on every rank.
failures create_with_option(const std::string& key, const std::string& value, isthmus_status status,
                            const std::vector<std::string>& texts) {
  run_setup setup = ranks_of(3, 60);
  if (!key.empty()) setup.options[key] = value;
  return run_ranks(setup, [&](rank& self) {
    check(self.create() == status, "status is not " + std::to_string(status) + ": " + self.failure());
    for (const std::string& text : texts) check(contains(self.failure(), text), self.failure());
  });
}

TEST_F(ucx_failures, unknown_transport_fails_on_all_ranks) {
  EXPECT_EQ(create_with_option(
                "transports", "tcp,pigeons", ISTHMUS_ERROR_CONFIG,
                {"backend.ucx.transports names \"pigeons\"", "available (transport/interface)", "tcp/lo"}),
            failures{});
}

TEST_F(ucx_failures, unknown_interface_fails_on_all_ranks) {
  EXPECT_EQ(create_with_option("interfaces", "eth99", ISTHMUS_ERROR_CONFIG,
                               {"backend.ucx.interfaces names \"eth99\"", "tcp/lo"}),
            failures{});
}

// Sets the variable on rank 1 only, before it loads UCX.
failures create_with_variable_on_rank_1(const char* variable, const std::string& value, double timeout_s,
                                        const std::vector<std::string>& texts) {
  return run_ranks(ranks_of(4, timeout_s), [&](rank& self) {
    if (self.number() == 1) ::setenv(variable, value.c_str(), 1);
    check(self.create() == ISTHMUS_ERROR_UNSUPPORTED, "status of rank " + std::to_string(self.number()));
    for (const std::string& text : texts) check(contains(self.failure(), text), self.failure());
  });
}

TEST_F(ucx_failures, rank_without_common_transport_fails_on_all) {
  EXPECT_EQ(create_with_variable_on_rank_1("UCX_TLS", "self", 60, {"no UCX transport reaches rank"}),
            failures{});
}

TEST_F(ucx_failures, port_in_use_fails_on_all_ranks) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t bytes = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(create_with_variable_on_rank_1(
                "UCX_TCP_PORT_RANGE", port + "-" + port, 60,
                {"rank 1", "the ports of UCX_TCP_PORT_RANGE=" + port + "-" + port + " may be in use"}),
            failures{});
  ::close(listener);
}

// The stand-in drops everything that rank 1 sends, like an unreachable node.
TEST_F(ucx_failures, unreachable_rank_is_named_on_all) {
  EXPECT_EQ(
      create_with_variable_on_rank_1("STANDIN_UCP_MUTE", "1", 4, {"no message over UCX", "rank 1 within 2 s"}),
      failures{});
}

TEST_F(ucx_failures, invalid_number_fails_on_all_ranks) {
  EXPECT_EQ(create_with_option("window", "many", ISTHMUS_ERROR_CONFIG, {"backend.ucx.window is \"many\""}),
            failures{});
}

TEST_F(ucx_failures, old_library_is_refused_with_the_reason) {
  EXPECT_EQ(create_with_option("", "", ISTHMUS_ERROR_UNSUPPORTED,
                               {"is UCX 1.9.2; version 1.12 or a newer 1.x is needed"}),
            failures{});
}

TEST_F(ucx_failures, missing_library_is_reported) {
  EXPECT_EQ(create_with_option("", "", ISTHMUS_ERROR_UNSUPPORTED,
                               {"cannot load a UCX library", "/nowhere/libucp.so.0"}),
            failures{});
}

}  // namespace
}  // namespace shm_test
