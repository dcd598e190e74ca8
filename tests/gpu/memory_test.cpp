// Tests the symmetric heap and copies on devices: every rank can access every byte of every block, and copies
// work on all paths. Runs with ranks in threads and in processes.
#include <gtest/gtest.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "test_ranks.hpp"

namespace gpu {
namespace {

constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};
isthmus_device cuda(int ordinal) { return {ISTHMUS_PLATFORM_CUDA, ordinal}; }

using bytes = std::vector<std::byte>;

bytes random_bytes(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  bytes result(count + 8);
  for (std::uint64_t pointer = 0; pointer < count; pointer += 8) {
    const std::uint64_t word = random();
    std::memcpy(result.data() + pointer, &word, 8);
  }
  result.resize(count);
  return result;
}

void require(isthmus_status status) {
  if (status != ISTHMUS_SUCCESS) throw std::runtime_error(last_error());
}

void put(member& self, void* to, const bytes& from) {
  require(isthmus_memory_copy(to, cuda(self.device), from.data(), host, from.size(), nullptr,
                              self.queue->native()));
  self.queue->synchronize();
}

bytes get(member& self, const void* from, std::uint64_t count) {
  bytes received(count);
  require(isthmus_memory_copy(received.data(), host, from, cuda(self.device), count, nullptr,
                              self.queue->native()));
  self.queue->synchronize();
  return received;
}

// Barrier that blocks the host.
void synchronize_ranks(member& self) {
  require(isthmus_barrier(self.communicator, self.queue->native()));
  self.queue->synchronize();
}

std::byte* allocate(member& self, std::uint64_t count) {
  void* pointer = nullptr;
  require(isthmus_memory_allocate_symmetric(self.communicator, count, &pointer));
  return static_cast<std::byte*>(pointer);
}

std::byte* peer(member& self, const void* pointer, int rank) {
  void* peer_address = nullptr;
  require(isthmus_memory_peer(self.communicator, pointer, rank, &peer_address));
  return static_cast<std::byte*>(peer_address);
}

TEST(gpu_memory, every_rank_can_access_every_byte) {
  test_ranks::get().for_each_rank([](member& self) {
    const std::uint64_t mib = 1 << 20;
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4097}, mib, mib + 1, 2 * mib - 1, 2 * mib,
                                      2 * mib + 1, 4 * mib, 6 * mib + 5, 40 * mib + 3}) {
      std::byte* const own = allocate(self, count);
      put(self, own, random_bytes(count, count + static_cast<std::uint64_t>(self.rank)));
      synchronize_ranks(self);
      for (int rank = 0; rank < test_ranks::get().size(); ++rank) {
        const auto* const peer_data = peer(self, own, rank);
        if (peer_data == nullptr) throw std::runtime_error("rank " + std::to_string(rank) + " is out of reach");
        EXPECT_TRUE(get(self, peer_data, count) ==
                    random_bytes(count, count + static_cast<std::uint64_t>(rank)))
            << count << " bytes of rank " << rank;
      }
      synchronize_ranks(self);
      const int next = (self.rank + 1) % test_ranks::get().size();
      put(self, peer(self, own + count - 1, next), {static_cast<std::byte>(self.rank + 50)});
      synchronize_ranks(self);
      const int previous_rank = (self.rank + test_ranks::get().size() - 1) % test_ranks::get().size();
      EXPECT_EQ(get(self, own + count - 1, 1)[0], static_cast<std::byte>(previous_rank + 50));
      require(isthmus_memory_free_symmetric(self.communicator, own));
    }
  });
}

TEST(gpu_memory, random_frees_preserve_other_blocks) {
  test_ranks::get().for_each_rank([](member& self) {
    std::mt19937_64 sizes(5), own_order(static_cast<unsigned>(self.rank));
    struct live {
      std::byte* pointer;
      std::uint64_t count, seed;
    };
    std::vector<live> blocks;
    for (int round = 0; round < 3; ++round) {
      while (blocks.size() < 60) {
        const std::uint64_t count = 1 + sizes() % (sizes() % 8 == 0 ? 5u << 20 : 100000u), seed = sizes();
        blocks.push_back({allocate(self, count), count, seed + static_cast<std::uint64_t>(self.rank)});
        put(self, blocks.back().pointer, random_bytes(count, blocks.back().seed));
      }
      std::shuffle(blocks.begin(), blocks.end(), own_order);
      for (const live& block : blocks)
        EXPECT_TRUE(get(self, block.pointer, block.count) == random_bytes(block.count, block.seed));
      const std::size_t keep_count = round == 2 ? 0 : 25;
      for (; blocks.size() > keep_count; blocks.pop_back())
        require(isthmus_memory_free_symmetric(self.communicator, blocks.back().pointer));
    }
  });
}

struct plain_block {
  plain_block(int device, std::uint64_t count) : device(device) {
    require(isthmus_memory_allocate_device(cuda(device), count, nullptr, &pointer));
  }
  ~plain_block() {
    EXPECT_EQ(isthmus_memory_free_device(cuda(device), pointer), ISTHMUS_SUCCESS) << last_error();
  }
  plain_block(const plain_block&) = delete;
  plain_block& operator=(const plain_block&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(pointer); }
  int device;
  void* pointer = nullptr;
};

// Copies the block to another device of this process and to the host, and compares it with `expected`.
void copy_round_trip(member& self, std::byte* block, const bytes& expected) {
  const int peer_device = (self.device + 1) % test_ranks::get().size();
  const plain_block remote(peer_device, expected.size());
  bytes received(expected.size());
  for (const bool push : {true, false}) {
    isthmus_copy_options options{};
    options.struct_bytes = sizeof options;
    options.push = push ? 1 : 0;
    const stream pull_queue(peer_device);
    require(isthmus_memory_copy(remote.data(), cuda(peer_device), block, cuda(self.device), expected.size(),
                                &options, push ? self.queue->native() : pull_queue.native()));
    (push ? *self.queue : pull_queue).synchronize();
    require(isthmus_memory_copy(received.data(), host, remote.data(), cuda(peer_device), expected.size(),
                                nullptr, pull_queue.native()));
    pull_queue.synchronize();
    EXPECT_TRUE(received == expected) << expected.size() << " bytes, push " << push;
  }
  use_device(self.device);
}

TEST(gpu_memory, growable_blocks_keep_their_contents) {
  test_ranks::get().for_each_rank([](member& self) {
    const auto seed = static_cast<std::uint64_t>(self.rank);
    const std::uint64_t mib = 1 << 20;
    isthmus_memory_options options{};
    options.struct_bytes = sizeof options;
    options.growable = 1;
    void* block = nullptr;
    require(isthmus_memory_allocate_device(cuda(self.device), 1, &options, &block));
    std::uint64_t filled_bytes = 0;
    for (const std::uint64_t count : {std::uint64_t{1}, 2 * mib - 1, 2 * mib, 2 * mib + 1, 4 * mib, 4 * mib + 1,
                                      6 * mib + 1, 40 * mib + 3, 70 * mib, 5 * mib + 1, 9 * mib}) {
      require(isthmus_memory_resize_device(cuda(self.device), &block, count));
      const bytes expected = random_bytes(count, seed);
      auto* const data = static_cast<std::byte*>(block);
      if (count > filled_bytes)
        put(self, data + filled_bytes,
            {expected.begin() + static_cast<std::ptrdiff_t>(filled_bytes), expected.end()});
      EXPECT_TRUE(get(self, block, count) == expected) << filled_bytes << " -> " << count << " bytes";
      if (test_ranks::get().is_single_process() && test_ranks::get().size() > 1)
        copy_round_trip(self, data, expected);
      filled_bytes = count;
    }
    require(isthmus_memory_free_device(cuda(self.device), block));
  });
}

void copy_and_check(member& self, int peer_device, isthmus_copy_path path, bool push) {
  isthmus_copy_options options{};
  options.struct_bytes = sizeof options;
  options.path = path;
  options.push = push ? 1 : 0;
  for (const std::uint64_t count : {0ul, 1ul, 4095ul, 300001ul, 33ul << 20, (70ul << 20) + 7}) {
    const plain_block from(push ? self.device : peer_device, count + 64),
        to(push ? peer_device : self.device, count + 64);
    const bytes sent = random_bytes(count + 64, count), fill_pattern(count + 64, std::byte{0xcd});
    const stream target_queue(to.device);
    for (const auto& [block, contents] : {std::pair(&from, &sent), std::pair(&to, &fill_pattern)}) {
      const stream queue(block->device);
      require(isthmus_memory_copy(block->data(), cuda(block->device), contents->data(), host, count + 64,
                                  nullptr, queue.native()));
      queue.synchronize();
    }
    require(isthmus_memory_copy(to.data() + 5, cuda(to.device), from.data() + 13, cuda(from.device), count,
                                &options, self.queue->native()));
    self.queue->synchronize();
    bytes received(count + 64), expected = fill_pattern;
    require(isthmus_memory_copy(received.data(), host, to.data(), cuda(to.device), count + 64, nullptr,
                                target_queue.native()));
    target_queue.synchronize();
    std::copy_n(sent.begin() + 13, count, expected.begin() + 5);
    EXPECT_TRUE(received == expected) << count << " bytes, path " << path << ", push " << push;
  }
  use_device(self.device);
}

TEST(gpu_memory, copies_work_on_every_path) {
  if (!test_ranks::get().is_single_process() || test_ranks::get().size() < 2)
    GTEST_SKIP() << "needs two devices in a process";
  test_ranks::get().for_each_rank([](member& self) {
    const int peer_device = (self.device + 1) % test_ranks::get().size();
    for (const auto path : {ISTHMUS_COPY_AUTO, ISTHMUS_COPY_DIRECT, ISTHMUS_COPY_STAGED})
      for (const bool push : {false, true}) copy_and_check(self, peer_device, path, push);
  });
}

// Copies on one stream are ordered, including staged ones. Heap blocks are copied by address.
TEST(gpu_memory, copies_on_a_stream_are_ordered) {
  if (!test_ranks::get().is_single_process() || test_ranks::get().size() < 2)
    GTEST_SKIP() << "needs two devices in a process";
  test_ranks::get().for_each_rank([](member& self) {
    const int next = (self.rank + 1) % test_ranks::get().size();
    constexpr std::uint64_t count = (9 << 20) + 1;
    std::byte* const own = allocate(self, count);
    const plain_block remote(next, count), return_block(self.device, count);
    const bytes sent = random_bytes(count, 3);
    isthmus_copy_options push{}, pull{};
    push.struct_bytes = pull.struct_bytes = sizeof push;
    push.push = 1;
    push.path = ISTHMUS_COPY_STAGED;
    bytes received(count);
    void* const queue = self.queue->native();
    require(isthmus_memory_copy(own, cuda(self.device), sent.data(), host, count, nullptr, queue));
    require(isthmus_memory_copy(remote.data(), cuda(next), own, cuda(self.device), count, &push, queue));
    require(isthmus_memory_copy(return_block.data(), cuda(self.device), remote.data(), cuda(next), count, &pull,
                                queue));
    require(isthmus_memory_copy(received.data(), host, return_block.data(), cuda(self.device), count, nullptr,
                                queue));
    self.queue->synchronize();
    EXPECT_TRUE(received == sent);
    require(isthmus_memory_free_symmetric(self.communicator, own));
  });
}

TEST(gpu_memory, no_blocks_are_leaked) { EXPECT_EQ(isthmus_memory_live_blocks(), 0u); }

}  // namespace
}  // namespace gpu
