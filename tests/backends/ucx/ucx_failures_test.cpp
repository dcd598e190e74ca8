// What goes wrong over UCX, on purpose: death, silence, abort, disagreement, networks that are not there.
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

#include "backends/ucx/ucx_backend.hpp"
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

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

run_setup ranks_of(int n, double timeout_s) {
  run_setup s;
  s.ranks = s.processes = n;
  s.timeout_s = timeout_s;
  s.backend = isthmus::ucx_backend();
  return s;
}

struct told {
  std::atomic<int>& fates;
  ~told() { ++fates; }
};

// A rank that is late for good, say: it stays until so many have met their fate.
void stay_away(const std::atomic<int>& fates, int others) {
  while (fates.load() < others) std::this_thread::sleep_for(20ms);
}

std::atomic<int>& shared_counter() {
  return *new (::topology::map_shared(sizeof(std::atomic<int>))) std::atomic<int>(0);
}

void create(rank& self) { check(self.create() == ISTHMUS_SUCCESS, "create: " + self.failure()); }

// The rank hears of a failure, and of whose it is.
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
      GTEST_SKIP() << "there is no libucp.so.0 here: apt-get install libucx0";
  }
  // In a child: this process forks its ranks before it loads UCX.
  static bool is_installed() { return std::system("ldconfig -p | grep -q libucp.so.0") == 0; }
};

TEST_F(ucx_failures, a_killed_rank_is_named_on_all_others) {
  std::atomic<int>& passed = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_SUCCESS, self.failure());
    if (++passed; self.number() == 2) {
      stay_away(passed, 4);  // nobody is in the first call any more
      ::kill(::getpid(), SIGKILL);
    }
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"rank 2"});
  };
  EXPECT_EQ(run_ranks(ranks_of(4, 60), body, 2), failures{});
}

TEST_F(ucx_failures, the_ranks_of_a_machine_are_named_together) {
  run_setup two_machines = ranks_of(4, 8);
  two_machines.node_of = {0, 0, 1, 1};
  std::atomic<int>& fates = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_SUCCESS, self.failure());
    if (self.number() >= 2) return stay_away(fates, 2);
    const told after{fates};
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"ranks 2 and 3"});
  };
  EXPECT_EQ(run_ranks(two_machines, body), failures{});
}

TEST_F(ucx_failures, a_rank_that_does_not_come_is_named_at_the_timeout) {
  std::atomic<int>& fates = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    if (self.number() == 1) return stay_away(fates, 2);
    const told after{fates};
    expect_failure(self, operation_of(ISTHMUS_ALLREDUCE, data), {"rank 1"});
  };
  EXPECT_EQ(run_ranks(ranks_of(3, 8), body), failures{});
}

// Both wait for the other, and say so when asked: nobody is missing.
TEST_F(ucx_failures, ranks_that_wait_for_each_other_are_told_so) {
  const auto body = [](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    const auto status = self.run(operation_of(ISTHMUS_RECV, data, 1 - self.number()));
    check(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE, self.failure());
    check(status == ISTHMUS_ERROR_REMOTE || contains(self.failure(), "all ranks answer"), self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(2, 8), body), failures{});
}

// What a rank did before it ended must arrive: its end alone is no failure.
TEST_F(ucx_failures, a_rank_that_left_after_its_part_is_no_failure) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{1} << 20}) {
    const auto body = [count](rank& self) {
      create(self);
      std::vector<float> data(count, self.number() == 0 ? 3.0f : 0.0f);
      if (self.number() > 0) std::this_thread::sleep_for(300ms);
      check(self.run(operation_of(ISTHMUS_BROADCAST, data)) == ISTHMUS_SUCCESS, self.failure());
      check(data.front() == 3 && data.back() == 3, "other data arrived");
    };
    EXPECT_EQ(run_ranks(ranks_of(3, 60), body), failures{}) << count;
  }
}

TEST_F(ucx_failures, an_abort_releases_all_ranks) {
  std::atomic<int>& fates = shared_counter();
  const auto body = [&](rank& self) {
    create(self);
    std::vector<float> data(1000, 1);
    if (self.number() == 2) return stay_away(fates, 2);
    const told after{fates};
    if (self.number() == 1) {
      std::this_thread::sleep_for(200ms);
      self.abort();
    }
    check(self.run(operation_of(ISTHMUS_ALLREDUCE, data)) == ISTHMUS_ERROR_ABORTED, self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(3, 60), body), failures{});
}

TEST_F(ucx_failures, other_lengths_are_a_mismatch) {
  const auto body = [](rank& self) {
    create(self);
    std::vector<float> data(self.number() == 0 ? 100 : 200, 1);
    const auto status =
        self.run(operation_of(self.number() == 0 ? ISTHMUS_SEND : ISTHMUS_RECV, data, 1 - self.number()));
    if (self.number() == 0) return;  // what was sent may have gone well
    check(status == ISTHMUS_ERROR_MISMATCH, self.failure());
    check(contains(self.failure(), "rank 0 sent another number of bytes than the 800"), self.failure());
  };
  EXPECT_EQ(run_ranks(ranks_of(2, 60), body), failures{});
}

// Rank 1 alone may lack it: all must hear.
failures create_with(const std::string& key, const std::string& value, isthmus_status status,
                       const std::vector<std::string>& texts) {
  run_setup asked = ranks_of(3, 60);
  if (!key.empty()) asked.options[key] = value;
  return run_ranks(asked, [&](rank& self) {
    check(self.create() == status, "status is not " + std::to_string(status) + ": " + self.failure());
    for (const std::string& text : texts) check(contains(self.failure(), text), self.failure());
  });
}

TEST_F(ucx_failures, a_transport_that_does_not_exist_is_an_error_on_all_ranks) {
  EXPECT_EQ(create_with("transports", "tcp,pigeons", ISTHMUS_ERROR_CONFIG,
                        {"backend.ucx.transports names \"pigeons\"", "it has (transport/interface)", "tcp/lo"}),
            failures{});
}

TEST_F(ucx_failures, an_interface_that_does_not_exist_is_an_error_on_all_ranks) {
  EXPECT_EQ(create_with("interfaces", "eth99", ISTHMUS_ERROR_CONFIG,
                        {"backend.ucx.interfaces names \"eth99\"", "tcp/lo"}),
            failures{});
}

// On rank 1 alone; before it has loaded UCX.
failures create_where_one_has(const char* variable, const std::string& value, double timeout_s,
                                const std::vector<std::string>& texts) {
  return run_ranks(ranks_of(4, timeout_s), [&](rank& self) {
    if (self.number() == 1) ::setenv(variable, value.c_str(), 1);
    check(self.create() == ISTHMUS_ERROR_UNSUPPORTED, "status of rank " + std::to_string(self.number()));
    for (const std::string& text : texts) check(contains(self.failure(), text), self.failure());
  });
}

TEST_F(ucx_failures, a_rank_without_the_network_of_the_others_is_named_on_all) {
  EXPECT_EQ(create_where_one_has("UCX_TLS", "self", 60, {"no transport of UCX reaches rank"}), failures{});
}

TEST_F(ucx_failures, a_taken_port_is_told_to_all_ranks) {
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  socklen_t bytes = sizeof here;
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&here), bytes), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&here), &bytes), 0);
  const std::string port = std::to_string(ntohs(here.sin_port));
  EXPECT_EQ(create_where_one_has("UCX_TCP_PORT_RANGE", port + "-" + port, 60,
                                 {"rank 1", "are the ports of UCX_TCP_PORT_RANGE=" + port}),
            failures{});
  ::close(taken);
}

// The stand-in loses what rank 1 sends, as where a machine can't be reached.
TEST_F(ucx_failures, a_rank_out_of_reach_is_named_on_all) {
  EXPECT_EQ(create_where_one_has("STANDIN_UCP_MUTE", "1", 4, {"no word over UCX", "rank 1 within 2 s"}),
            failures{});
}

TEST_F(ucx_failures, an_option_that_is_no_number_is_an_error_on_all_ranks) {
  EXPECT_EQ(create_with("window", "many", ISTHMUS_ERROR_CONFIG, {"backend.ucx.window is \"many\""}),
            failures{});
}

TEST_F(ucx_failures, too_old_a_library_is_left_alone_with_the_reason) {
  EXPECT_EQ(create_with("", "", ISTHMUS_ERROR_UNSUPPORTED, {"is UCX 1.9.2; 1.12 or a newer 1.x is needed"}),
            failures{});
}

TEST_F(ucx_failures, no_library_is_a_reason) {
  EXPECT_EQ(create_with("", "", ISTHMUS_ERROR_UNSUPPORTED,
                        {"no UCX library could be loaded", "/nowhere/libucp.so.0"}),
            failures{});
}

}  // namespace
}  // namespace shm_test
