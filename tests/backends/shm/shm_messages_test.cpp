// Groups of messages: short ones to one peer travel together. Random lengths and datatypes, poisoned buffers,
// threads and processes.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <map>
#include <random>

#include "rank_runner.hpp"

namespace shm_test {
namespace {

using failures = std::vector<std::string>;

constexpr std::byte poison{0xa5};
constexpr std::size_t guard_bytes = 24;

// One message in both its sides' eyes: all that they know of it follows from these numbers.
struct letter {
  int from, to;
  std::uint64_t nth;  // between these two
  isthmus_datatype datatype;
  std::uint64_t count;

  std::uint64_t bytes() const { return count * isthmus_datatype_bytes(datatype); }
  std::byte at(std::uint64_t i) const {
    const std::uint64_t which = static_cast<std::uint64_t>(from * 64 + to) * 4096 + nth;
    return static_cast<std::byte>((which * 0x9e3779b97f4a7c15U + i * 0xbf58476d1ce4e5b9U) >> 56);
  }
};

// Between nothing and what needs several cells or goes by address; most are short.
std::uint64_t random_count(std::mt19937& random) {
  switch (random() % 16) {
    case 0: return 0;
    case 1: return random() % 9000;
    case 2: return 100 + random() % 700;
    default: return 1 + random() % 40;
  }
}

letter random_letter(std::mt19937& random, int from, int to, std::uint64_t nth) {
  constexpr isthmus_datatype types[] = {ISTHMUS_UINT8, ISTHMUS_BFLOAT16, ISTHMUS_INT32, ISTHMUS_FLOAT64};
  return {from, to, nth, types[random() % 4], random_count(random)};
}

// A letter in this rank's memory, between guards.
class copy_of {
 public:
  copy_of(const letter& what, bool sends)
      : m_what(what), m_sends(sends), m_memory(what.bytes() + 2 * guard_bytes, poison) {
    for (std::uint64_t i = 0; i < what.bytes() && sends; ++i) m_memory[guard_bytes + i] = what.at(i);
  }
  isthmus_operation operation() {
    isthmus_operation made{};
    made.collective = m_sends ? ISTHMUS_SEND : ISTHMUS_RECV;
    made.datatype = m_what.datatype;
    made.count = m_what.count;
    made.root = m_sends ? m_what.to : m_what.from;
    if (m_sends)
      made.send_buf = m_memory.data() + guard_bytes;
    else
      made.recv_buf = m_memory.data() + guard_bytes;
    return made;
  }
  void verify() const {
    for (std::uint64_t i = 0; i < m_what.bytes(); ++i)
      check(m_memory[guard_bytes + i] == m_what.at(i),
            "message " + std::to_string(m_what.nth) + " from rank " + std::to_string(m_what.from) + " to " +
                std::to_string(m_what.to) + " is wrong at byte " + std::to_string(i));
    for (std::size_t i = 0; i < guard_bytes; ++i)
      check(m_memory[i] == poison && m_memory[m_memory.size() - 1 - i] == poison, "wrote beside a message");
  }

 private:
  letter m_what;
  bool m_sends;
  std::vector<std::byte> m_memory;
};

void run_all(rank& self, std::vector<copy_of>& letters) {
  std::vector<isthmus_operation> group;
  for (copy_of& each : letters) group.push_back(each.operation());
  check(self.run(group) == ISTHMUS_SUCCESS, self.failure());
  for (const copy_of& each : letters) each.verify();
}

struct rank_layout {
  int ranks, processes;
  bool small_cells;
};
std::string rank_layout_name(const testing::TestParamInfo<rank_layout>& info) {
  return "ranks" + std::to_string(info.param.ranks) + "_processes" + std::to_string(info.param.processes) +
         (info.param.small_cells ? "_small_cells" : "");
}

run_setup make_setup(const rank_layout& who) {
  run_setup made;
  made.ranks = who.ranks;
  made.processes = who.processes;
  if (who.small_cells) made.options = {{"cell_bytes", "256"}, {"cells", "2"}, {"address_bytes", "3000"}};
  return made;
}

class shm_messages : public testing::TestWithParam<rank_layout> {};

// Every rank knows all letters of a round; each posts its own in an order of its own, in which only those of
// one pair and direction keep theirs.
TEST_P(shm_messages, of_random_lengths_among_all) {
  EXPECT_EQ(run_backend(make_setup(GetParam()),
                        [](rank& self) {
                          std::mt19937 random(7), own(static_cast<unsigned>(self.number()));
                          std::map<std::pair<int, int>, std::uint64_t> sent;
                          for (int round = 0; round < (self.size() > 3 ? 12 : 60); ++round) {
                            std::map<int, std::vector<copy_of>> with;  // by peer and direction
                            const auto letters = static_cast<unsigned>(self.size()) * (random() % 24);
                            for (unsigned i = 0; i < letters; ++i) {
                              const int from = static_cast<int>(random() % static_cast<unsigned>(self.size()));
                              const int to = static_cast<int>(random() % static_cast<unsigned>(self.size()));
                              const letter one = random_letter(random, from, to, sent[{from, to}]++);
                              if (from == self.number()) with[to].emplace_back(one, true);
                              if (to == self.number()) with[64 + from].emplace_back(one, false);
                            }
                            std::vector<copy_of> mine;
                            while (!with.empty()) {
                              auto stack = std::next(with.begin(), static_cast<int>(own() % with.size()));
                              mine.push_back(std::move(stack->second.front()));
                              stack->second.erase(stack->second.begin());
                              if (stack->second.empty()) with.erase(stack);
                            }
                            run_all(self, mine);
                          }
                        }),
            failures{});
}

INSTANTIATE_TEST_SUITE_P(, shm_messages,
                         testing::Values(rank_layout{1, 1, false}, rank_layout{2, 1, false}, rank_layout{2, 2, false},
                                         rank_layout{2, 2, true}, rank_layout{3, 3, true}, rank_layout{5, 2, false},
                                         rank_layout{7, 7, false}),
                         rank_layout_name);

// What the sender groups says nothing about what the receiver groups.
TEST(shm_backend, messages_are_received_in_other_groups_than_they_were_sent) {
  for (const bool small_cells : {false, true})
    EXPECT_EQ(run_backend(make_setup({2, 2, small_cells}),
                          [](rank& self) {
                            std::mt19937 random(11), own(static_cast<unsigned>(self.number()) + 5);
                            std::uint64_t nth = 0;
                            for (int turn = 0; turn < 40; ++turn) {
                              const int from = turn % 2;
                              std::vector<letter> letters;
                              for (unsigned i = 1 + random() % 60; i > 0; --i)
                                letters.push_back(random_letter(random, from, 1 - from, nth++));
                              for (std::size_t next = 0; next < letters.size();) {
                                const std::size_t end = std::min(next + 1 + own() % 30, letters.size());
                                std::vector<copy_of> group;
                                for (; next < end; ++next)
                                  group.emplace_back(letters[next], self.number() == from);
                                run_all(self, group);
                              }
                            }
                          }),
              failures{});
}

// A group of short messages to one peer takes one cell of two, so it is gone before the peer looks at it: were
// each in a cell of its own, the call would wait for the peer until the timeout.
TEST(shm_backend, a_group_of_short_messages_to_one_peer_is_one_message) {
  run_setup s = make_setup({2, 2, false});
  s.options = {{"cells", "2"}, {"cell_bytes", "4096"}};
  s.timeout_s = 20;
  EXPECT_EQ(run_backend(s,
                        [](rank& self) {
                          std::vector<copy_of> group;
                          for (std::uint64_t nth = 0; nth < 26; ++nth)
                            group.emplace_back(letter{0, 1, nth, ISTHMUS_INT32, 20}, self.number() == 0);
                          if (self.number() == 0) run_all(self, group);
                          self.meet();
                          if (self.number() == 1) run_all(self, group);
                        }),
            failures{});
}

TEST(shm_backend, a_message_of_another_length_among_several_is_a_mismatch) {
  run_setup s = make_setup({2, 2, false});
  s.timeout_s = 20;
  EXPECT_EQ(run_ranks(s,
                      [](rank& self) {
                        check(self.create() == ISTHMUS_SUCCESS, self.failure());
                        std::vector<copy_of> letters;
                        for (std::uint64_t nth = 0; nth < 3; ++nth)
                          letters.emplace_back(letter{0, 1, nth, ISTHMUS_UINT8, 10 + nth}, self.number() == 0);
                        std::vector<isthmus_operation> group;
                        for (copy_of& each : letters) group.push_back(each.operation());
                        if (self.number() == 1) group.back().count = 13;
                        const isthmus_status status = self.run(group);
                        if (self.number() == 1) {
                          check(status == ISTHMUS_ERROR_MISMATCH, self.failure());
                          check(
                              self.failure().find("sent 12 bytes where rank 1 expects 13") != std::string::npos,
                              self.failure());
                        }
                        self.meet();
                        self.destroy();
                      }),
            failures{});
}

}  // namespace
}  // namespace shm_test
