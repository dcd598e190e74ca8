// Injected failures: exit, abort, timeout, mismatched calls, ranks without shared memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/tables.hpp"
#include "local_groups.hpp"
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

bool contains(const std::string& text, const std::string& substring) {
  return text.find(substring) != std::string::npos;
}

run_setup processes(int n, double timeout_s) {
  run_setup s;
  s.ranks = s.processes = n;
  s.timeout_s = timeout_s;
  return s;
}

void create(rank& self) { check(self.create() == ISTHMUS_SUCCESS, "create: " + self.failure()); }

TEST(shm_failures, killed_rank_is_reported_before_the_timeout) {
  for (const char* algorithm : {"packet", "grid_packet", "one_shot", "two_shot", "zero_copy"}) {
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
                    check(contains(self.failure(), "allreduce"), self.failure());
                    check(seconds_since(begin) < 5, "it took " + std::to_string(seconds_since(begin)) + " s");
                  },
                  2),
              failures{})
        << algorithm;
  }
}

TEST(shm_failures, killed_sender_is_reported) {
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
                  check(contains(self.failure(), "send or recv"), self.failure());
                },
                1),
            failures{});
}

// Data that a rank published before it exited must still arrive. Exiting is not a failure by itself.
TEST(shm_failures, rank_that_exits_after_its_part_is_no_failure) {
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

TEST(shm_failures, rank_with_destroyed_communicator_is_reported) {
  for (const int processes_used : {1, 2}) {
    run_setup s = processes(2, 60);
    s.processes = processes_used;
    EXPECT_EQ(run_ranks(s,
                        [&](rank& self) {
                          create(self);
                          if (self.number() == 1) {
                            self.destroy();
                            self.barrier();  // stays alive
                            return;
                          }
                          std::vector<float> data(100, 1);
                          check(self.run(allreduce(data.data(), 100)) == ISTHMUS_ERROR_REMOTE, self.failure());
                          check(contains(self.failure(), "rank 1"), self.failure());
                          self.barrier();
                        }),
              failures{});
  }
}

TEST(shm_failures, timeout_names_late_rank_and_later_calls_fail) {
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
                  self.barrier();
                  const auto begin = std::chrono::steady_clock::now();
                  const auto status = self.run(allreduce(data.data(), 10));
                  check(status == ISTHMUS_ERROR_REMOTE || status == ISTHMUS_ERROR_ABORTED, self.failure());
                  check(seconds_since(begin) < 0.3, "a call on an aborted communicator waited");
                }),
      failures{});
}

// Ranks 0 and 1 each wait for a message of the other, which it sends later, and for rank 2, which does not call.
TEST(shm_failures, waits_for_several_peers_name_the_late_one) {
  EXPECT_EQ(run_ranks(processes(3, 1),
                      [&](rank& self) {
                        create(self);
                        if (self.number() == 2) return self.barrier();
                        std::vector<float> data(20, 1);
                        std::vector<isthmus_operation> receives;
                        for (const int source : {1 - self.number(), 2}) {
                          receives.push_back(allreduce(data.data() + 10 * receives.size(), 10));
                          receives.back().collective = ISTHMUS_RECV;
                          receives.back().root = source;
                        }
                        const auto status = self.run(receives);
                        self.barrier();
                        check(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE,
                              self.failure());
                        check(self.awaited_rank() == 2, "it waits for " + std::to_string(self.awaited_rank()));
                        if (status == ISTHMUS_ERROR_TIMEOUT)
                          check(contains(self.failure(), "for rank 2"), self.failure());
                      }),
            failures{});
}

// The messages take longer than the timeout, but each arrives within it.
TEST(shm_failures, progress_restarts_the_timeout) {
  EXPECT_EQ(run_ranks(processes(2, 3),
                      [&](rank& self) {
                        create(self);
                        constexpr int messages = 4;
                        std::vector<float> data(10 * messages, 1);
                        std::vector<isthmus_operation> operations;
                        for (int i = 0; i < messages; ++i) {
                          operations.push_back(allreduce(data.data() + 10 * i, 10));
                          operations.back().collective = self.number() == 0 ? ISTHMUS_RECV : ISTHMUS_SEND;
                          operations.back().root = 1 - self.number();
                        }
                        if (self.number() == 0) {
                          check(self.run(operations) == ISTHMUS_SUCCESS, self.failure());
                          return;
                        }
                        for (const isthmus_operation& each : operations) {
                          std::this_thread::sleep_for(1s);
                          check(self.run(each) == ISTHMUS_SUCCESS, self.failure());
                        }
                      }),
            failures{});
}

std::ptrdiff_t count_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return std::distance(std::filesystem::begin(folder), std::filesystem::end(folder));
}

// A program may have hundreds of communicators.
TEST(shm_failures, communicator_holds_no_descriptors) {
  EXPECT_EQ(run_ranks(processes(4, 60),
                      [](rank& self) {
                        const auto before = count_descriptors();
                        create(self);
                        std::vector<float> data(100, 1);
                        check(self.run(allreduce(data.data(), 100)) == ISTHMUS_SUCCESS, self.failure());
                        const auto after = count_descriptors();
                        self.barrier();
                        check(after == before, std::to_string(after - before) + " more descriptors");
                      }),
            failures{});
}

TEST(shm_failures, forked_child_does_not_leave_the_communicator) {
  EXPECT_EQ(run_ranks(processes(2, 60),
                      [&](rank& self) {
                        create(self);
                        if (self.number() == 1) {
                          const pid_t child = ::fork();
                          if (child == 0) {
                            self.destroy();
                            ::_exit(0);
                          }
                          check(::waitpid(child, nullptr, 0) == child, "waitpid");
                          self.barrier();
                          std::this_thread::sleep_for(500ms);  // rank 0 checks this rank
                        } else {
                          self.barrier();
                        }
                        std::vector<float> data(100, 1);
                        const auto status = self.run(allreduce(data.data(), 100));
                        self.barrier();
                        check(status == ISTHMUS_SUCCESS, self.failure());
                      }),
            failures{});
}

TEST(shm_failures, abort_on_one_rank_releases_all_ranks) {
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
                          self.barrier();
                        }),
              failures{});
  }
}

// Rank 1 has received the failure of rank 2, which has not reached rank 0 yet.
TEST(shm_failures, first_failure_is_passed_on) {
  local_groups failed(3), groups(3);
  failed[2].publish_failed_rank(2);
  const std::uint64_t word = failed[1].header(1).abort_word.load();
  EXPECT_NE(word, 0u);
  groups[1].header(1).abort_word = word;
  groups[1].publish_abort();
  for (int r = 0; r < groups.size(); ++r) EXPECT_EQ(groups[r].header(r).abort_word.load(), word);
}

TEST(shm_failures, abort_by_the_runtime_ends_a_wait) {
  run_setup s;
  s.ranks = 2;
  EXPECT_EQ(run_ranks(s,
                      [&](rank& self) {
                        create(self);
                        std::vector<float> data(10, 1);
                        if (self.number() == 0) {
                          std::thread second_thread([&] {
                            std::this_thread::sleep_for(100ms);
                            self.pretend_aborted();
                          });
                          const auto status = self.run(allreduce(data.data(), 10));
                          second_thread.join();
                          check(status == ISTHMUS_ERROR_ABORTED, self.failure());
                        }
                        self.barrier();
                      }),
            failures{});
}

TEST(shm_failures, mismatched_message_lengths_are_reported) {
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
                        self.barrier();
                      }),
            failures{});
}

// With zero-copy algorithms, a rank that passed fewer elements than its peers would have memory behind its
// buffer overwritten.
TEST(shm_failures, mismatched_zero_copy_calls_write_nothing) {
  constexpr std::uint64_t max_count = 20000, tail_count = 4000;
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
                const std::uint64_t count = self.number() == 2 ? max_count / 2 : max_count;
                std::vector<float> send(3 * max_count + tail_count, 1), recv(3 * max_count + tail_count, 5);
                isthmus_operation operation = allreduce(send.data(), count);
                operation.collective = collective;
                operation.recv_buf = recv.data();
                const auto status = self.run(operation, "zero_copy");
                check(status == ISTHMUS_ERROR_MISMATCH || status == ISTHMUS_ERROR_ABORTED ||
                          status == ISTHMUS_ERROR_REMOTE,
                      "status " + std::to_string(status) + ": " + self.failure());
                if (status == ISTHMUS_ERROR_MISMATCH)
                  check(contains(self.failure(), self.number() == 2 ? "rank 0" : "rank 2"), self.failure());
                self.barrier();
                check(std::ranges::all_of(recv, [](float each) { return each == 5; }), "recv was written");
                check(std::ranges::all_of(send, [](float each) { return each == 1; }), "send was written");
              }),
          failures{})
          << isthmus::row_of(collective).name << " in processes: " << processes;
    }
}

// The calls of the ranks in a test of different calls, and the algorithm of rank 0 ("": the same).
struct different_call {
  const char* name;
  void (*change)(isthmus_operation&);
  const char* other_algorithm = nullptr;
};
constexpr different_call different_calls[] = {
    {"count", [](isthmus_operation& operation) { operation.count += 1; }},
    {"datatype", [](isthmus_operation& operation) { operation.datatype = ISTHMUS_INT32; }},
    {"operation", [](isthmus_operation& operation) { operation.op = ISTHMUS_MAX; }},
    {"root",
     [](isthmus_operation& operation) {
       operation.collective = ISTHMUS_REDUCE;
       operation.root = 1;
     }},
    {"collective", [](isthmus_operation& operation) { operation.collective = ISTHMUS_BROADCAST; }},
    {"barrier", [](isthmus_operation& operation) { operation.collective = ISTHMUS_BARRIER; }},
    {"algorithm", [](isthmus_operation&) {}, "two_shot"},
};

TEST(shm_failures, different_calls_are_a_mismatch_on_every_path) {
  for (const different_call& difference : different_calls)
    for (const char* algorithm :
         {"packet", "two_shot_packet", "grid_packet", "one_shot", "two_shot", "zero_copy"})
      for (const int ranks : {2, 3}) {
        if (difference.other_algorithm != nullptr && std::string(algorithm) == difference.other_algorithm)
          continue;
        EXPECT_EQ(run_ranks(processes(ranks, 20),
                            [&](rank& self) {
                              create(self);
                              std::vector<float> data(100, 1);
                              for (int i = 0; i < 3; ++i)
                                check(self.run(allreduce(data.data(), 90), algorithm) == ISTHMUS_SUCCESS,
                                      self.failure());
                              isthmus_operation operation = allreduce(data.data(), 90);
                              const char* own_algorithm = algorithm;
                              if (self.number() == ranks - 1) {
                                difference.change(operation);
                                if (difference.other_algorithm != nullptr)
                                  own_algorithm = difference.other_algorithm;
                                if (operation.collective != ISTHMUS_ALLREDUCE) own_algorithm = "packet";
                              }
                              const auto begin = std::chrono::steady_clock::now();
                              auto status = self.run(operation, own_algorithm);
                              // A root that receives nothing has finished its part; its next call fails.
                              if (status == ISTHMUS_SUCCESS)
                                status = self.run(allreduce(data.data(), 90), algorithm);
                              check(status == ISTHMUS_ERROR_MISMATCH || status == ISTHMUS_ERROR_REMOTE ||
                                        status == ISTHMUS_ERROR_ABORTED,
                                    "status " + std::to_string(status) + ": " + self.failure());
                              check(seconds_since(begin) < 10, "detected only at the timeout");
                              self.barrier();
                            }),
                  failures{})
            << difference.name << " " << algorithm << " " << ranks;
      }
}

TEST(shm_failures, unmatched_send_to_self_is_a_usage_error) {
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

TEST(shm_failures, two_machines_are_unsupported_on_all_ranks) {
  run_setup s;
  s.node_of = {0, 0, 1, 1};
  EXPECT_EQ(run_ranks(s,
                      [&](rank& self) {
                        check(self.create() == ISTHMUS_ERROR_UNSUPPORTED, "it was created");
                        check(contains(self.failure(), "another machine"), self.failure());
                      }),
            failures{});
}

TEST(shm_failures, bad_option_error_names_key_and_value) {
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

// All shared memory is released even though the killed rank could not clean up. Only flight recorder files
// remain, so that they can be read.
TEST(shm_failures, kill_9_leaves_no_shared_memory) {
  const auto count_files = [] {
    const std::filesystem::directory_iterator folder("/dev/shm");
    return std::count_if(std::filesystem::begin(folder), std::filesystem::end(folder), [](const auto& file) {
      return !file.path().filename().string().starts_with("isthmus-");
    });
  };
  const auto maps = [] {
    std::ifstream file("/proc/self/maps");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return contains(text, "memfd:isthmus");
  };
  const auto files_before = count_files();
  const auto descriptors_before = count_descriptors();
  EXPECT_EQ(run_ranks(
                processes(3, 60),
                [&](rank& self) {
                  create(self);
                  check(maps(), "the segments should be mapped now");
                  self.barrier();
                  if (self.number() == 1) ::kill(::getpid(), SIGKILL);
                },
                1),
            failures{});
  EXPECT_EQ(count_files(), files_before);
  EXPECT_EQ(count_descriptors(), descriptors_before);
  EXPECT_FALSE(maps());
}

}  // namespace
}  // namespace shm_test
