// Tests broadcasts of the peer-memory kernels, whose roots do not wait: in any order among other calls, with
// skewed ranks, and before the communicator is destroyed.
#include <gtest/gtest.h>
#include <isthmus/tools.h>

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

// Counts of float32: one packet, some slots, 22 KB, and the largest message that the rules assign to packets.
constexpr std::uint64_t counts[] = {1, 1000, 5632, 64 * 1024};

scenario broadcast_of(std::uint64_t count, int root, std::uint64_t seed) {
  return {gpu::make_shape(ISTHMUS_BROADCAST, test_ranks::get().size(), root, count), ISTHMUS_FLOAT32,
          ISTHMUS_SUM, false, seed};
}

bool uses_peer_memory() {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BROADCAST;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = counts[3];
  char path[64] = "";
  return isthmus_communicator_path(test_ranks::get().members()[0].communicator, &operation, path,
                                   sizeof path) == ISTHMUS_SUCCESS &&
         std::string(path).starts_with("p2p");
}

// A second communicator of the same ranks, with its own order of calls.
class duplicate {
 public:
  explicit duplicate(const member& parent) : m_self(static_cast<const ::topology::test_rank&>(parent)) {
    if (isthmus_communicator_split(parent.communicator, 0, parent.rank, &m_self.communicator) !=
        ISTHMUS_SUCCESS)
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

// Barrier that blocks the host.
void synchronize_ranks(const member& self) {
  ASSERT_EQ(isthmus_barrier(self.communicator, self.queue->native()), ISTHMUS_SUCCESS) << gpu::last_error();
  self.queue->synchronize();
}

void run(const rank_call& call, const member& self) {
  ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
  self.queue->synchronize();
}

TEST(broadcast, root_does_not_wait_for_readers) {
  if (!uses_peer_memory()) GTEST_SKIP() << "other backends may wait";
  test_ranks::get().for_each_rank([](member& self) {
    duplicate second(self);
    for (const std::uint64_t count : counts)
      for (const int root : {0, test_ranks::get().size() - 1}) {
        const rank_call call(broadcast_of(count, root, count), self);
        if (self.rank != root) synchronize_ranks(second.self());
        run(call, self);
        if (self.rank == root) synchronize_ranks(second.self());
        EXPECT_EQ(call.error(), "") << count << " elements of root " << root << " on rank " << self.rank;
      }
  });
}

// The root makes its next call, of any kind, before all ranks have received its previous broadcast.
TEST(broadcast, among_other_calls_with_skewed_ranks) {
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
        call_list += std::string(" ") + isthmus_collective_name(collective) + ":" + std::to_string(count) +
                     ":" + std::to_string(root);
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

TEST(broadcast, root_may_destroy_its_communicator_at_once) {
  test_ranks::get().for_each_rank([](member& self) {
    for (int round = 0; round < 8; ++round) {
      duplicate second(self);
      const rank_call call(broadcast_of(counts[round % 4], 0, 50), second.self());
      if (self.rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(round));
      ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
      if (self.rank == 0) second.end();
      EXPECT_EQ(call.error(), "") << "round " << round << " on rank " << self.rank;
    }
  });
}

// Late ranks must not write to memory that the root has already freed.
TEST(broadcast, late_ranks_do_not_write_to_a_destroyed_root) {
  if (!uses_peer_memory()) GTEST_SKIP() << "other backends may wait";
  test_ranks::get().for_each_rank([](member& self) {
    duplicate second(self);
    const rank_call call(broadcast_of(counts[2], 0, 60), second.self());
    if (self.rank == 0) {
      run(call, second.self());
      const auto start = std::chrono::steady_clock::now();
      second.end();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "destroy took too long";
      synchronize_ranks(self);
    } else {
      synchronize_ranks(self);
      run(call, second.self());
    }
    EXPECT_EQ(call.error(), "") << "on rank " << self.rank;
  });
}

}  // namespace
