// Broadcasts of peer-memory kernels, whose roots wait for nobody: in any order among other calls, with ranks
// that are late, and before the communicator's end.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using gpu::test_ranks;

// Of float32: one packet, some slots, 22 KB, all that the rules give to packets.
constexpr std::uint64_t counts[] = {1, 1000, 5632, 64 * 1024};

scenario broadcast_of(std::uint64_t count, int root, std::uint64_t seed) {
  return {gpu::make_shape(ISTHMUS_BROADCAST, test_ranks::get().size(), root, count), ISTHMUS_FLOAT32, ISTHMUS_SUM,
          false, seed};
}

bool uses_peer_memory() {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BROADCAST;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = counts[3];
  char path[64] = "";
  return isthmus_communicator_path(test_ranks::get().members()[0].communicator, &operation, path, sizeof path) ==
             ISTHMUS_SUCCESS &&
         std::string(path).starts_with("p2p");
}

// The same ranks' communicator beside the world's, with its own order of calls.
class duplicate {
 public:
  explicit duplicate(const member& parent) : m_self(static_cast<const ::topology::test_rank&>(parent)) {
    if (isthmus_communicator_split(parent.communicator, 0, parent.rank, &m_self.communicator) != ISTHMUS_SUCCESS)
      throw std::runtime_error("split: " + gpu::last_error());
    m_self.queue = std::make_unique<gpu::stream>(parent.device);
  }
  ~duplicate() { end(); }
  member& self() { return m_self; }
  void end() {
    if (m_self.communicator == nullptr) return;
    EXPECT_EQ(isthmus_communicator_destroy(std::exchange(m_self.communicator, nullptr)), ISTHMUS_SUCCESS)
        << gpu::last_error();
  }

 private:
  member m_self;
};

// The host goes on once every rank is here.
void synchronize_ranks(const member& self) {
  ASSERT_EQ(isthmus_barrier(self.communicator, self.queue->native()), ISTHMUS_SUCCESS) << gpu::last_error();
  self.queue->synchronize();
}

void run(const rank_call& call, const member& self) {
  ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
  self.queue->synchronize();
}

TEST(broadcast, of_a_root_ends_before_the_others_call_it) {
  if (!uses_peer_memory()) GTEST_SKIP() << "other backends may wait";
  test_ranks::get().for_each_rank([](member& self) {
    duplicate other(self);
    for (const std::uint64_t count : counts)
      for (const int root : {0, test_ranks::get().size() - 1}) {
        const rank_call call(broadcast_of(count, root, count), self);
        if (self.rank != root) synchronize_ranks(other.self());
        run(call, self);
        if (self.rank == root) synchronize_ranks(other.self());
        EXPECT_EQ(call.error(), "") << count << " elements of root " << root << " on rank " << self.rank;
      }
  });
}

// The root's call of before has not been heard by all when it makes the next one, whatever that is.
TEST(broadcast, among_other_calls_with_late_ranks) {
  constexpr int rounds = 30, calls_per_round = 40;
  test_ranks::get().for_each_rank([](member& self) {
    std::mt19937 shared_random(7), own_random(100u + static_cast<unsigned>(self.rank));
    for (int round = 0; round < rounds; ++round) {
      std::deque<rank_call> calls;
      std::string call_list;
      for (int i = 0; i < calls_per_round; ++i) {
        const unsigned kind = shared_random() % 8, size = static_cast<unsigned>(test_ranks::get().size());
        const auto collective = kind == 0   ? ISTHMUS_ALLREDUCE
                                : kind == 1 ? ISTHMUS_ALLGATHER
                                            : ISTHMUS_BROADCAST;
        const std::uint64_t max_count = counts[shared_random() % 4], count = 1 + shared_random() % max_count;
        const int root = kind < 2 ? 0 : static_cast<int>(shared_random() % size);
        calls.emplace_back(scenario{gpu::make_shape(collective, static_cast<int>(size), root, count),
                                    ISTHMUS_FLOAT32, ISTHMUS_SUM, false, shared_random()},
                           self);
        call_list += std::string(" ") + isthmus_collective_name(collective) + ":" + std::to_string(count) + ":" +
                 std::to_string(root);
      }
      for (const rank_call& call : calls) {
        if (own_random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_random() % 500));
        ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
      }
      self.queue->synchronize();
      for (int i = 0; i < calls_per_round; ++i)
        ASSERT_EQ(calls[static_cast<std::size_t>(i)].error(), "")
            << "call " << i << " of round " << round << " on rank " << self.rank << ":" << call_list;
    }
  });
}

TEST(broadcast, of_a_root_that_destroys_its_communicator_at_once) {
  test_ranks::get().for_each_rank([](member& self) {
    for (int round = 0; round < 8; ++round) {
      duplicate other(self);
      const rank_call call(broadcast_of(counts[round % 4], 0, 50), other.self());
      if (self.rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(round));
      ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
      if (self.rank == 0) other.end();
      EXPECT_EQ(call.error(), "") << "round " << round << " on rank " << self.rank;
    }
  });
}

// Nobody's memory is written when the others come after all.
TEST(broadcast, of_a_root_that_is_gone_when_the_others_call_it) {
  if (!uses_peer_memory()) GTEST_SKIP() << "other backends may wait";
  test_ranks::get().for_each_rank([](member& self) {
    duplicate other(self);
    const rank_call call(broadcast_of(counts[2], 0, 60), other.self());
    if (self.rank == 0) {
      run(call, other.self());
      const auto start = std::chrono::steady_clock::now();
      other.end();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "waits for ever";
      synchronize_ranks(self);
    } else {
      synchronize_ranks(self);
      run(call, other.self());
    }
    EXPECT_EQ(call.error(), "") << "on rank " << self.rank;
  });
}

}  // namespace
