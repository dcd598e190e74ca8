// Random programs of sends and receives on models of the backends. If NCCL alone completes a program without buffers, the
// same program must complete when the short messages run on a backend with buffered sends.
#include "base/message_order.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace {

using isthmus::message_phases;
using isthmus::ordered_message;

constexpr char nccl = 0, buffered = 0;  // their addresses identify the backends

// A message, with the same object on both ranks.
struct transfer {
  int from, to;
  bool is_short;
  int index = 0;  // among the short messages from this rank to that one
};

struct posted {
  const transfer* message;
  bool is_send;
  int peer() const { return is_send ? message->to : message->from; }
};
using message_group = std::vector<posted>;

ordered_message describe(const posted& each) {
  return {each.peer(), each.is_send, each.message->is_short ? &buffered : &nccl, each.message->is_short};
}

// The messages of a pair run concurrently.
struct message_pair {
  std::vector<posted> messages;
};

// Pairs that run one after the other: those of one peer in NCCL, or the rounds of the other backend.
using sequence = std::vector<message_pair>;

// Sequences of one launch, which run concurrently.
struct launch {
  bool is_buffered;
  std::vector<sequence> sequences;
};

launch make_launch(const message_group& messages, bool is_buffered) {
  std::map<int, sequence> by_peer;  // with buffered sends: one sequence for all peers
  std::map<std::pair<int, bool>, std::size_t> counts;
  for (const posted& each : messages) {
    sequence& own = by_peer[is_buffered ? 0 : each.peer()];
    const std::size_t index = counts[{each.peer(), each.is_send}]++;
    if (own.size() <= index) own.resize(index + 1);
    own[index].messages.push_back(each);
  }
  launch result{is_buffered, {}};
  for (auto& [peer, own] : by_peer) result.sequences.push_back(std::move(own));
  return result;
}

// One rank. A message starts when its pair is the next one of its sequence.
class rank_model {
 public:
  std::vector<launch> launches;

  bool is_done() const { return m_next == launches.size(); }
  // Returns true if the state has changed.
  template <typename World>
  bool advance(World& world) {
    if (is_done()) return false;
    launch& own = launches[m_next];
    m_positions.resize(own.sequences.size());
    bool has_changed = false, is_complete = true;
    for (std::size_t i = 0; i < own.sequences.size(); ++i) {
      for (; m_positions[i] < own.sequences[i].size(); ++m_positions[i]) {
        const message_pair& current = own.sequences[i][m_positions[i]];
        const bool ends = own.is_buffered ? run_buffered(current, world, has_changed)
                                          : run_in_nccl(current, world, has_changed);
        if (!ends) break;
        has_changed = true;
      }
      is_complete = is_complete && m_positions[i] == own.sequences[i].size();
    }
    if (!is_complete) return has_changed;
    m_positions.clear();
    ++m_next;
    return true;
  }

 private:
  // Without buffers: a message ends when both ranks have started it.
  template <typename World>
  bool run_in_nccl(const message_pair& current, World& world, bool& has_changed) {
    bool ends = true;
    for (const posted& each : current.messages) {
      has_changed |= world.started.insert({each.message, each.is_send}).second;
      ends = ends && world.started.contains({each.message, !each.is_send});
    }
    return ends;
  }
  // The ring has memory for two messages. A kernel that waits for memory does not receive.
  template <typename World>
  bool run_buffered(const message_pair& current, World& world, bool& has_changed) {
    for (const bool is_send : {true, false})
      for (const posted& each : current.messages) {
        if (each.is_send != is_send || world.ended.contains({each.message, is_send})) continue;
        const std::pair direction(each.message->from, each.message->to);
        if (each.message->from == each.message->to) {
          world.ended.insert({each.message, is_send});
          continue;
        }
        if (is_send ? world.sent[direction] - world.received[direction] >= 2
                    : world.sent[direction] <= each.message->index)
          return false;
        ++(is_send ? world.sent : world.received)[direction];
        world.ended.insert({each.message, is_send});
        has_changed = true;
      }
    return true;
  }

  std::size_t m_next = 0;
  std::vector<std::size_t> m_positions;
};

struct world {
  std::set<std::pair<const transfer*, bool>> started, ended;
  std::map<std::pair<int, int>, int> sent, received;
};

bool completes(std::vector<rank_model> ranks) {
  world state;
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (rank_model& rank : ranks) has_changed |= rank.advance(state);
  }
  return std::all_of(ranks.begin(), ranks.end(), [](const rank_model& rank) { return rank.is_done(); });
}

using program = std::vector<std::vector<message_group>>;  // the groups of each rank

bool completes_in_nccl(const program& all) {
  std::vector<rank_model> ranks(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const message_group& each : all[rank]) ranks[rank].launches.push_back(make_launch(each, false));
  return completes(std::move(ranks));
}

bool completes_on_two_backends(const program& all) {
  std::vector<rank_model> ranks(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const message_group& each : all[rank]) {
      std::vector<ordered_message> ordered;
      for (const posted& message : each) ordered.push_back(describe(message));
      const std::vector<int> phases = message_phases(ordered, static_cast<int>(rank));
      std::map<std::pair<int, bool>, message_group> launches;
      for (std::size_t i = 0; i < each.size(); ++i)
        launches[{phases[i], !each[i].message->is_short}].push_back(each[i]);
      for (const auto& [key, messages] : launches)
        ranks[rank].launches.push_back(make_launch(messages, !key.second));
    }
  return completes(std::move(ranks));
}

std::vector<transfer> random_transfers(std::mt19937& random, int size, unsigned n) {
  std::vector<transfer> all;
  std::map<std::pair<int, int>, int> counts;
  for (unsigned i = 0; i < n; ++i) {
    const int from = static_cast<int>(random() % static_cast<unsigned>(size));
    const int to = static_cast<int>(random() % static_cast<unsigned>(size));
    const bool is_short = random() % 2 == 0;
    all.push_back({from, to, is_short, is_short ? counts[{from, to}]++ : 0});
  }
  return all;
}

// Both ranks of a message to oneself are the same, so both of its ends are in one group.
void post(message_group& target, const transfer& message, int rank) {
  if (message.from == rank) target.push_back({&message, true});
  if (message.to == rank) target.push_back({&message, false});
}

TEST(message_order, completes_what_nccl_completes) {
  std::mt19937 random(1);
  int completed = 0, stuck = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<transfer> all = random_transfers(random, 2, 1 + random() % 9);
    program groups(2);
    for (int rank = 0; rank < 2; ++rank) {
      // Each rank merges its two directions in its own order, and divides them into groups.
      std::vector<const transfer*> order, sends, receives;
      for (const transfer& each : all) {
        if (each.from == rank) sends.push_back(&each);
        if (each.from != rank) receives.push_back(&each);
      }
      if (random() % 2 == 0) {
        for (const transfer& each : all) order.push_back(&each);
      } else {
        for (std::size_t s = 0, r = 0; s < sends.size() || r < receives.size();) {
          const bool is_send = r == receives.size() || (s < sends.size() && random() % 2 == 0);
          order.push_back(is_send ? sends[s++] : receives[r++]);
        }
      }
      auto& own = groups[static_cast<std::size_t>(rank)];
      for (const transfer* const each : order) {
        if (own.empty() || random() % 3 == 0) own.emplace_back();
        post(own.back(), *each, rank);
      }
    }
    if (!completes_in_nccl(groups)) {
      ++stuck;
      continue;
    }
    ++completed;
    ASSERT_TRUE(completes_on_two_backends(groups)) << "program " << i;
  }
  EXPECT_GT(completed, 3'000);
  EXPECT_GT(stuck, 300) << "the programs are too simple to show a deadlock";
}

// Alltoallv and other exchanges: all ranks have the same groups.
TEST(message_order, completes_equal_groups_of_several_ranks) {
  std::mt19937 random(2);
  for (int i = 0; i < 5'000; ++i) {
    const int size = 2 + static_cast<int>(random() % 4);
    const std::vector<transfer> all = random_transfers(random, size, 1 + random() % 40);
    program groups(static_cast<std::size_t>(size));
    for (std::size_t first = 0; first < all.size();) {
      const std::size_t last = std::min<std::size_t>(all.size(), first + 1 + random() % 20);
      for (int rank = 0; rank < size; ++rank) {
        groups[static_cast<std::size_t>(rank)].emplace_back();
        for (std::size_t each = first; each < last; ++each)
          post(groups[static_cast<std::size_t>(rank)].back(), all[each], rank);
      }
      first = last;
    }
    ASSERT_TRUE(completes_on_two_backends(groups)) << "program " << i;
  }
}

// One group is one launch for each backend if a pair uses one backend only.
TEST(message_order, divides_only_mixed_pairs) {
  const transfer short_out{0, 1, true}, long_out{0, 1, false}, short_in{1, 0, true}, long_in{1, 0, false},
      short_self{0, 0, true}, long_self{0, 0, false};
  const auto phases_of = [](const std::vector<posted>& messages) {
    std::vector<ordered_message> ordered;
    for (const posted& each : messages) ordered.push_back(describe(each));
    return message_phases(ordered, 0);
  };
  const posted send{&short_out, true}, receive{&short_in, false}, send_long{&long_out, true},
      receive_long{&long_in, false};
  EXPECT_EQ(phases_of({send, receive, receive, send}), (std::vector{1, 1, 1, 1}));
  EXPECT_EQ(phases_of({send, receive, {&long_self, true}, {&long_self, false}}), (std::vector{1, 1, 1, 1}));
  EXPECT_EQ(phases_of({send, receive_long}), (std::vector{0, 1}));
  EXPECT_EQ(phases_of({receive, send_long}), (std::vector{2, 1}));
  EXPECT_EQ(phases_of({send, receive, send_long, receive_long}), (std::vector{1, 1, 4, 4}));
  EXPECT_EQ(phases_of({{&short_self, false}, {&short_self, true}, send_long, receive}),
            (std::vector{0, 0, 1, 2}));
}

}  // namespace
