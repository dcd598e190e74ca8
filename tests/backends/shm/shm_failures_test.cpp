// What goes wrong, on purpose: death, abort, timeout, disagreement, machines that share nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/tables.hpp"
#include "rank_runner.hpp"

namespace shm_test {
namespace {

using failures = std::vector<std::string>;
using namespace std::chrono_literals;

isthmus_operation allreduce(float* data, std::uint64_t count) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = count;
  operation.send_buf = operation.recv_buf = data;
  return operation;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

run_setup processes(int n, double timeout_s) {
  run_setup s;
  s.ranks = s.processes = n;
  s.timeout_s = timeout_s;
  return s;
}

void create(rank& self) { check(self.create() == ISTHMUS_SUCCESS, "create: " + self.failure()); }

TEST(shm_failures, a_killed_rank_is_named_on_all_others_long_before_the_timeout) {
  for (const char* algorithm : {"packet", "one_shot", "two_shot", "zero_copy"}) {
    EXPECT_EQ(run_ranks(
                  processes(4, 60),
                  [&](rank& self) {
                    create(self);
                    std::vector<float> data(100, 1);
                    check(self.run(allreduce(data.data(), 100), algorithm) == ISTHMUS_SUCCESS, self.failure());
                    if (self.number() == 2) ::kill(::getpid(), SIGKILL);
                    const auto begin = std::chrono::steady_clock::now();
                    const auto status = self.run(allreduce(data.data(), 100), algorithm);
                    check(status == ISTHMUS_ERROR_REMOTE,
                          "status " + std::to_string(status) + ": " + self.failure());
                    check(contains(self.failure(), "rank 2"), self.failure());
                    check(seconds_since(begin) < 5, "it took " + std::to_string(seconds_since(begin)) + " s");
                  },
                  2),
              failures{})
        << algorithm;
  }
}

TEST(shm_failures, a_killed_sender_is_named) {
  EXPECT_EQ(run_ranks(
                processes(2, 60),
                [&](rank& self) {
                  create(self);
                  std::vector<float> data(100, 1);
                  if (self.number() == 1) ::kill(::getpid(), SIGKILL);
                  isthmus_operation recv = allreduce(data.data(), 100);
                  recv.collective = ISTHMUS_RECV;
                  recv.root = 1;
                  check(self.run(recv) == ISTHMUS_ERROR_REMOTE, self.failure());
                  check(contains(self.failure(), "rank 1"), self.failure());
                },
                1),
            failures{});
}

// What a rank did before it ended must arrive: its end alone is no failure.
TEST(shm_failures, a_rank_that_left_after_its_part_is_no_failure) {
  EXPECT_EQ(run_ranks(processes(2, 60),
                      [&](rank& self) {
                        create(self);
                        std::vector<float> data(100, self.number() == 1 ? 3.0f : 0.0f);
                        isthmus_operation message = allreduce(data.data(), 100);
                        message.collective = self.number() == 1 ? ISTHMUS_SEND : ISTHMUS_RECV;
                        message.root = 1 - self.number();
                        if (self.number() == 0) std::this_thread::sleep_for(300ms);
                        check(self.run(message) == ISTHMUS_SUCCESS, self.failure());
                        check(data[99] == 3, "the message is wrong");
                      }),
            failures{});
}

TEST(shm_failures, a_rank_that_destroyed_its_communicator_is_named) {
  for (const int processes_used : {1, 2}) {
    run_setup s = processes(2, 60);
    s.processes = processes_used;
    EXPECT_EQ(run_ranks(s,
                        [&](rank& self) {
                          create(self);
                          if (self.number() == 1) {
                            self.destroy();
                            self.meet();  // stays alive
                            return;
                          }
                          std::vector<float> data(100, 1);
                          check(self.run(allreduce(data.data(), 100)) == ISTHMUS_ERROR_REMOTE, self.failure());
                          check(contains(self.failure(), "rank 1"), self.failure());
                          self.meet();
                        }),
              failures{});
  }
}

TEST(shm_failures, a_missing_rank_is_a_timeout_that_names_it_and_later_calls_fail_at_once) {
  EXPECT_EQ(
      run_ranks(processes(3, 0.5),
                [&](rank& self) {
                  create(self);
                  std::vector<float> data(10, 1);
                  if (self.number() != 1) {
                    const auto begin = std::chrono::steady_clock::now();
                    const auto status = self.run(allreduce(data.data(), 10), "one_shot");
                    check(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE, self.failure());
                    if (status == ISTHMUS_ERROR_TIMEOUT)
                      check(contains(self.failure(), "for rank 1"), self.failure());
                    check(seconds_since(begin) > 0.3 && seconds_since(begin) < 5,
                          "the timeout of 0.5 s was not kept");
                  }
                  self.meet();
                  const auto begin = std::chrono::steady_clock::now();
                  const auto status = self.run(allreduce(data.data(), 10));
                  check(status == ISTHMUS_ERROR_REMOTE || status == ISTHMUS_ERROR_ABORTED, self.failure());
                  check(seconds_since(begin) < 0.3, "a poisoned communicator waited");
                }),
      failures{});
}

TEST(shm_failures, abort_on_one_rank_releases_all) {
  for (const int used : {1, 4}) {
    run_setup s = processes(4, 60);
    s.processes = used;
    EXPECT_EQ(run_ranks(s,
                        [&](rank& self) {
                          create(self);
                          std::vector<float> data(10, 1);
                          const auto begin = std::chrono::steady_clock::now();
                          if (self.number() == 3) {
                            std::this_thread::sleep_for(100ms);
                            self.abort();
                          } else {
                            check(self.run(allreduce(data.data(), 10)) == ISTHMUS_ERROR_ABORTED,
                                  self.failure());
                            check(contains(self.failure(), "rank 3"), self.failure());
                            check(seconds_since(begin) < 5, "too late");
                          }
                          self.meet();
                        }),
              failures{});
  }
}

TEST(shm_failures, the_runtime_s_own_abort_ends_a_wait) {
  run_setup s;
  s.ranks = 2;
  EXPECT_EQ(run_ranks(s,
                      [&](rank& self) {
                        create(self);
                        std::vector<float> data(10, 1);
                        if (self.number() == 0) {
                          std::thread other([&] {
                            std::this_thread::sleep_for(100ms);
                            self.pretend_aborted();
                          });
                          const auto status = self.run(allreduce(data.data(), 10));
                          other.join();
                          check(status == ISTHMUS_ERROR_ABORTED, self.failure());
                        }
                        self.meet();
                      }),
            failures{});
}

TEST(shm_failures, messages_of_different_length_are_a_mismatch) {
  EXPECT_EQ(run_ranks(processes(2, 5),
                      [&](rank& self) {
                        create(self);
                        std::vector<float> data(100, 1);
                        isthmus_operation message = allreduce(data.data(), self.number() == 0 ? 10 : 11);
                        message.collective = self.number() == 0 ? ISTHMUS_SEND : ISTHMUS_RECV;
                        message.root = 1 - self.number();
                        const auto status = self.run(message);
                        if (self.number() == 1) {
                          check(status == ISTHMUS_ERROR_MISMATCH, self.failure());
                          check(contains(self.failure(), "40 bytes") && contains(self.failure(), "44"),
                                self.failure());
                          check(data[0] == 1, "the buffer was written");
                        }
                        self.meet();
                      }),
            failures{});
}

// Where ranks copy into and out of each other's buffers, one that gave fewer elements would lose what lies
// behind.
TEST(shm_failures, direct_calls_of_different_length_touch_nothing) {
  constexpr std::uint64_t most = 20000, behind = 4000;
  for (const isthmus_collective collective :
       {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE, ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER, ISTHMUS_GATHER,
        ISTHMUS_REDUCE_SCATTER, ISTHMUS_ALLTOALL})
    for (const int processes : {1, 3}) {
      run_setup s;
      s.ranks = 3;
      s.processes = processes;
      s.timeout_s = 20;
      EXPECT_EQ(
          run_ranks(
              s,
              [&](rank& self) {
                create(self);
                const std::uint64_t count = self.number() == 2 ? most / 2 : most;
                std::vector<float> send(3 * most + behind, 1), recv(3 * most + behind, 5);
                isthmus_operation operation = allreduce(send.data(), count);
                operation.collective = collective;
                operation.recv_buf = recv.data();
                const auto status = self.run(operation, "zero_copy");
                check(status == ISTHMUS_ERROR_MISMATCH || status == ISTHMUS_ERROR_ABORTED ||
                          status == ISTHMUS_ERROR_REMOTE,
                      "status " + std::to_string(status) + ": " + self.failure());
                if (status == ISTHMUS_ERROR_MISMATCH)
                  check(contains(self.failure(), self.number() == 2 ? "rank 0" : "rank 2"), self.failure());
                self.meet();
                check(std::ranges::all_of(recv, [](float each) { return each == 5; }), "recv was written");
                check(std::ranges::all_of(send, [](float each) { return each == 1; }), "send was written");
              }),
          failures{})
          << isthmus::row_of(collective).name << " in processes: " << processes;
    }
}

TEST(shm_failures, a_send_to_oneself_without_recv_is_a_usage_error_that_harms_nothing) {
  run_setup s;
  s.ranks = 2;
  EXPECT_EQ(run_backend(s,
                        [&](rank& self) {
                          std::vector<float> data(10, 1);
                          isthmus_operation send = allreduce(data.data(), 10);
                          send.collective = ISTHMUS_SEND;
                          send.root = self.number();
                          check(self.run(send) == ISTHMUS_ERROR_INVALID_USAGE, self.failure());
                          check(self.run(allreduce(data.data(), 10)) == ISTHMUS_SUCCESS, self.failure());
                          check(data[9] == 2, "wrong sum afterwards");
                        }),
            failures{});
}

TEST(shm_failures, ranks_of_two_machines_are_unsupported_on_all_ranks) {
  run_setup s;
  s.node_of = {0, 0, 1, 1};
  EXPECT_EQ(run_ranks(s,
                      [&](rank& self) {
                        check(self.create() == ISTHMUS_ERROR_UNSUPPORTED, "it was created");
                        check(contains(self.failure(), "another machine"), self.failure());
                      }),
            failures{});
}

TEST(shm_failures, a_bad_option_names_key_value_and_range) {
  run_setup s;
  s.options = {{"depth", "3"}};
  EXPECT_EQ(run_ranks(s,
                      [&](rank& self) {
                        check(self.create() == ISTHMUS_ERROR_CONFIG, self.failure());
                        check(
                            contains(self.failure(), "backend.shm.depth") && contains(self.failure(), "\"3\""),
                            self.failure());
                      }),
            failures{});
}

// The kernel's count of shared memory falls back to where it was, though nobody could clean up; but for the
// flight recorders, which stay to be read (docs/flight_recorder.md).
TEST(shm_failures, nothing_is_left_after_kill_9) {
  const auto count_files = [] {
    const std::filesystem::directory_iterator folder("/dev/shm");
    return std::count_if(std::filesystem::begin(folder), std::filesystem::end(folder), [](const auto& file) {
      return !file.path().filename().string().starts_with("isthmus-");
    });
  };
  const auto descriptors = [] {
    const std::filesystem::directory_iterator folder("/proc/self/fd");
    return std::distance(std::filesystem::begin(folder), std::filesystem::end(folder));
  };
  const auto maps = [] {
    std::ifstream file("/proc/self/maps");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return contains(text, "memfd:isthmus");
  };
  const auto files_before = count_files();
  const auto descriptors_before = descriptors();
  EXPECT_EQ(run_ranks(
                processes(3, 60),
                [&](rank& self) {
                  create(self);
                  check(maps(), "the segments should be mapped now");
                  self.meet();
                  if (self.number() == 1) ::kill(::getpid(), SIGKILL);
                },
                1),
            failures{});
  EXPECT_EQ(count_files(), files_before);
  EXPECT_EQ(descriptors(), descriptors_before);
  EXPECT_FALSE(maps());
}

}  // namespace
}  // namespace shm_test
