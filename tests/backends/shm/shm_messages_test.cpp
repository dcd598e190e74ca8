// Groups of messages. Short messages to the same peer are packed. Random lengths and datatypes, buffers with a
// fill pattern, threads and processes.
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

// One message. Both sides compute its content from these numbers.
struct test_message {
  int from, to;
  std::uint64_t nth;  // between these two
  isthmus_datatype datatype;
  std::uint64_t count;

  std::uint64_t bytes() const { return count * isthmus_datatype_bytes(datatype); }
  std::byte byte_at(std::uint64_t i) const {
    const std::uint64_t message_id = static_cast<std::uint64_t>(from * 64 + to) * 4096 + nth;
    return static_cast<std::byte>((message_id * 0x9e3779b97f4a7c15U + i * 0xbf58476d1ce4e5b9U) >> 56);
  }
};

// From empty messages to messages that need several cells or are sent by address. Most are short.
std::uint64_t random_count(std::mt19937& random) {
  switch (random() % 16) {
    case 0: return 0;
    case 1: return random() % 9000;
    case 2: return 100 + random() % 700;
    default: return 1 + random() % 40;
  }
}

test_message random_message(std::mt19937& random, int from, int to, std::uint64_t nth) {
  constexpr isthmus_datatype types[] = {ISTHMUS_UINT8, ISTHMUS_BFLOAT16, ISTHMUS_INT32, ISTHMUS_FLOAT64};
  return {from, to, nth, types[random() % 4], random_count(random)};
}

// A message in this rank's memory, between guard bytes.
class message_buffer {
 public:
  message_buffer(const test_message& message, bool is_send)
      : m_message(message), m_is_send(is_send), m_memory(message.bytes() + 2 * guard_bytes, poison) {
    for (std::uint64_t i = 0; i < message.bytes() && is_send; ++i)
      m_memory[guard_bytes + i] = message.byte_at(i);
  }
  isthmus_operation operation() {
    isthmus_operation result{};
    result.collective = m_is_send ? ISTHMUS_SEND : ISTHMUS_RECV;
    result.datatype = m_message.datatype;
    result.count = m_message.count;
    result.root = m_is_send ? m_message.to : m_message.from;
    if (m_is_send)
      result.send_buf = m_memory.data() + guard_bytes;
    else
      result.recv_buf = m_memory.data() + guard_bytes;
    return result;
  }
  void verify() const {
    for (std::uint64_t i = 0; i < m_message.bytes(); ++i)
      check(m_memory[guard_bytes + i] == m_message.byte_at(i),
            "message " + std::to_string(m_message.nth) + " from rank " + std::to_string(m_message.from) +
                " to " + std::to_string(m_message.to) + " is wrong at byte " + std::to_string(i));
    for (std::size_t i = 0; i < guard_bytes; ++i)
      check(m_memory[i] == poison && m_memory[m_memory.size() - 1 - i] == poison, "wrote outside of a message");
  }

 private:
  test_message m_message;
  bool m_is_send;
  std::vector<std::byte> m_memory;
};

void run_all(rank& self, std::vector<message_buffer>& messages) {
  std::vector<isthmus_operation> group;
  for (message_buffer& each : messages) group.push_back(each.operation());
  check(self.run(group) == ISTHMUS_SUCCESS, self.failure());
  for (const message_buffer& each : messages) each.verify();
}

struct rank_layout {
  int ranks, processes;
  bool small_cells;
};
std::string rank_layout_name(const testing::TestParamInfo<rank_layout>& info) {
  return "ranks" + std::to_string(info.param.ranks) + "_processes" + std::to_string(info.param.processes) +
         (info.param.small_cells ? "_small_cells" : "");
}

run_setup make_setup(const rank_layout& layout) {
  run_setup setup;
  setup.ranks = layout.ranks;
  setup.processes = layout.processes;
  if (layout.small_cells) setup.options = {{"cell_bytes", "256"}, {"cells", "2"}, {"address_bytes", "3000"}};
  return setup;
}

class shm_messages : public testing::TestWithParam<rank_layout> {};

// Every rank knows all messages of a round and posts its own ones in a random order that preserves the order
// within each pair and direction.
TEST_P(shm_messages, random_lengths_between_all_ranks) {
  EXPECT_EQ(run_backend(make_setup(GetParam()),
                        [](rank& self) {
                          std::mt19937 random(7), own(static_cast<unsigned>(self.number()));
                          std::map<std::pair<int, int>, std::uint64_t> sequence_numbers;
                          for (int round = 0; round < (self.size() > 3 ? 12 : 60); ++round) {
                            std::map<int, std::vector<message_buffer>> pending;  // by peer and direction
                            const auto message_count = static_cast<unsigned>(self.size()) * (random() % 24);
                            for (unsigned i = 0; i < message_count; ++i) {
                              const int from = static_cast<int>(random() % static_cast<unsigned>(self.size()));
                              const int to = static_cast<int>(random() % static_cast<unsigned>(self.size()));
                              const test_message next_message =
                                  random_message(random, from, to, sequence_numbers[{from, to}]++);
                              if (from == self.number()) pending[to].emplace_back(next_message, true);
                              if (to == self.number()) pending[64 + from].emplace_back(next_message, false);
                            }
                            std::vector<message_buffer> own_messages;
                            while (!pending.empty()) {
                              auto stack = std::next(pending.begin(), static_cast<int>(own() % pending.size()));
                              own_messages.push_back(std::move(stack->second.front()));
                              stack->second.erase(stack->second.begin());
                              if (stack->second.empty()) pending.erase(stack);
                            }
                            run_all(self, own_messages);
                          }
                        }),
            failures{});
}

INSTANTIATE_TEST_SUITE_P(, shm_messages,
                         testing::Values(rank_layout{1, 1, false}, rank_layout{2, 1, false},
                                         rank_layout{2, 2, false}, rank_layout{2, 2, true},
                                         rank_layout{3, 3, true}, rank_layout{5, 2, false},
                                         rank_layout{7, 7, false}),
                         rank_layout_name);

// Sender and receiver may group the same messages differently.
TEST(shm_backend, sends_and_receives_may_be_grouped_differently) {
  for (const bool small_cells : {false, true})
    EXPECT_EQ(run_backend(make_setup({2, 2, small_cells}),
                          [](rank& self) {
                            std::mt19937 random(11), own(static_cast<unsigned>(self.number()) + 5);
                            std::uint64_t nth = 0;
                            for (int round = 0; round < 40; ++round) {
                              const int from = round % 2;
                              std::vector<test_message> messages;
                              for (unsigned i = 1 + random() % 60; i > 0; --i)
                                messages.push_back(random_message(random, from, 1 - from, nth++));
                              for (std::size_t next = 0; next < messages.size();) {
                                const std::size_t end = std::min(next + 1 + own() % 30, messages.size());
                                std::vector<message_buffer> group;
                                for (; next < end; ++next)
                                  group.emplace_back(messages[next], self.number() == from);
                                run_all(self, group);
                              }
                            }
                          }),
              failures{});
}

// A group of short messages to one peer fits into one of two cells, so the send completes before the peer
// receives. With one cell per message, the call would wait for the peer until the timeout.
TEST(shm_backend, short_messages_to_one_peer_share_a_cell) {
  run_setup s = make_setup({2, 2, false});
  s.options = {{"cells", "2"}, {"cell_bytes", "4096"}};
  s.timeout_s = 20;
  EXPECT_EQ(run_backend(s,
                        [](rank& self) {
                          std::vector<message_buffer> group;
                          for (std::uint64_t nth = 0; nth < 26; ++nth)
                            group.emplace_back(test_message{0, 1, nth, ISTHMUS_INT32, 20}, self.number() == 0);
                          if (self.number() == 0) run_all(self, group);
                          self.barrier();
                          if (self.number() == 1) run_all(self, group);
                        }),
            failures{});
}

TEST(shm_backend, mismatch_in_packed_messages_is_reported) {
  run_setup s = make_setup({2, 2, false});
  s.timeout_s = 20;
  EXPECT_EQ(
      run_ranks(s,
                [](rank& self) {
                  check(self.create() == ISTHMUS_SUCCESS, self.failure());
                  std::vector<message_buffer> messages;
                  for (std::uint64_t nth = 0; nth < 3; ++nth)
                    messages.emplace_back(test_message{0, 1, nth, ISTHMUS_UINT8, 10 + nth}, self.number() == 0);
                  std::vector<isthmus_operation> group;
                  for (message_buffer& each : messages) group.push_back(each.operation());
                  if (self.number() == 1) group.back().count = 13;
                  const isthmus_status status = self.run(group);
                  if (self.number() == 1) {
                    check(status == ISTHMUS_ERROR_MISMATCH, self.failure());
                    check(self.failure().find("sent 12 bytes where rank 1 expects 13") != std::string::npos,
                          self.failure());
                  }
                  self.barrier();
                  self.destroy();
                }),
      failures{});
}

}  // namespace
}  // namespace shm_test
