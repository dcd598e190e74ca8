// Ranks whose copies the kernel refuses after the communicator was created.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "collective_case.hpp"
#include "copy_refusal.hpp"

namespace shm_test {
namespace {

using failures = std::vector<std::string>;

struct refusal_case {
  copy_refusal reason;
  int ranks, processes;
};
std::string case_name(const testing::TestParamInfo<refusal_case>& info) {
  constexpr const char* names[] = {"user", "user_in_message", "seccomp", "seccomp_writes"};
  return std::string(names[static_cast<int>(info.param.reason)]) + "_ranks" + std::to_string(info.param.ranks) +
         "_processes" + std::to_string(info.param.processes);
}

class shm_refused_copies : public testing::TestWithParam<refusal_case> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  }
  // Rank 1 loses the right to copy, then all ranks run `body`. `must_write`: rank 1 writes to other ranks.
  failures run(const std::function<void(rank&)>& body, bool must_write = false) {
    const bool has_refusals = must_write || GetParam().reason != copy_refusal::seccomp_writes;
    run_setup setup;
    setup.ranks = GetParam().ranks;
    setup.processes = GetParam().processes;
    setup.timeout_s = 20;
    setup.options = {{"address_bytes", "16384"}};  // messages in cells need no access
    return run_backend(setup, [&](rank& self) {
      if (self.number() == 1) refuse_copies(GetParam().reason);
      self.barrier();
      body(self);
      if (self.number() == 1 && has_refusals) check(refused_copies() > 0, "the kernel has refused no copy");
    });
  }
};

// The kernel refuses a copy of the first case. Later cases are staged.
void run_cases(rank& self, isthmus_collective collective, bool in_place) {
  std::uint64_t seed = 500;
  for (const auto placement : {memory::separate, memory::mixed})
    for (const std::uint64_t count : {131'073, 5000}) {
      collective_case p;
      p.collective = collective;
      p.in_place = in_place;
      p.placement = placement;
      p.count = count;
      p.seed = ++seed;
      run_case(self, p);
    }
}

TEST_P(shm_refused_copies, collectives_with_counts) {
  EXPECT_EQ(run([](rank& self) {
              for (const auto collective : {ISTHMUS_ALLTOALLV, ISTHMUS_GATHERV, ISTHMUS_SCATTERV})
                run_cases(self, collective, collective == ISTHMUS_GATHERV);
            }),
            failures{});
}

TEST_P(shm_refused_copies, collectives_with_equal_counts) {
  for (const auto collective : {ISTHMUS_BROADCAST, ISTHMUS_REDUCE, ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE_SCATTER,
                                ISTHMUS_ALLGATHER, ISTHMUS_GATHER, ISTHMUS_SCATTER, ISTHMUS_ALLTOALL})
    for (const bool in_place : {false, true}) {
      // Only root 0 reads in reduce and gather, and an in-place alltoall is always staged.
      if (in_place && collective == ISTHMUS_ALLTOALL) continue;
      const bool must_write = collective == ISTHMUS_ALLREDUCE || collective == ISTHMUS_GATHER;
      EXPECT_EQ(run([&](rank& self) { run_cases(self, collective, in_place); }, must_write), failures{})
          << isthmus_collective_name(collective);
    }
}

// Every rank exchanges messages with every other rank. The long ones are copied by both sides.
TEST_P(shm_refused_copies, messages) {
  EXPECT_EQ(run([](rank& self) {
              for (std::uint64_t round = 0; round < 2; ++round)
                for (const std::uint64_t length : {20'000, 3'000'001}) {
                  const auto content = [&](int from, int to) {
                    return random_bytes(round, from * 64 + to, length);
                  };
                  std::vector<std::vector<std::byte>> sent, received;
                  std::vector<isthmus_operation> group;
                  for (int peer = 0; peer < self.size(); ++peer) {
                    isthmus_operation send{}, recv{};
                    send.collective = ISTHMUS_SEND;
                    recv.collective = ISTHMUS_RECV;
                    send.datatype = recv.datatype = ISTHMUS_UINT8;
                    send.count = recv.count = length;
                    send.root = recv.root = peer;
                    sent.push_back(content(self.number(), peer));
                    received.emplace_back(length);
                    send.send_buf = sent.back().data();
                    recv.recv_buf = received.back().data();
                    group.insert(group.end(), {send, recv});
                  }
                  check(self.run(group) == ISTHMUS_SUCCESS, self.failure());
                  for (int peer = 0; peer < self.size(); ++peer)
                    check(received[static_cast<std::size_t>(peer)] == content(peer, self.number()),
                          "a message of rank " + std::to_string(peer) + " is wrong");
                }
            }),
            failures{});
}

std::vector<refusal_case> all_cases() {
  std::vector<refusal_case> cases;
  for (const auto reason : copy_refusals)
    for (const auto& [ranks, processes] : {std::pair{3, 3}, {5, 2}})
      cases.push_back({reason, ranks, processes});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(, shm_refused_copies, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace shm_test
