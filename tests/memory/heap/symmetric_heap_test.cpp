// The symmetric heap on the host: threads, processes, invalid use, and 10,000 random steps checked
// against a model.
#include <isthmus/memory.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "core/support.hpp"
#include "memory/segment.hpp"

namespace {

using test::last_error;

// Collective: all ranks of this process allocate concurrently.
std::vector<void*> allocate(const test::ranks& ranks, std::uint64_t bytes) {
  std::vector<void*> blocks(static_cast<std::size_t>(ranks.size()));
  test::run_on_each_rank(ranks.size(), [&](int rank) {
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], bytes, &blocks[static_cast<std::size_t>(rank)]),
              ISTHMUS_SUCCESS)
        << last_error().message;
  });
  return blocks;
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:isthmus") != std::string::npos ? 1 : 0;
  return count;
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct heap_test : testing::Test {
  void SetUp() override {
    standin::reset();
    maps = mappings();
    fds = descriptors();
  }
  void TearDown() override {
    EXPECT_EQ(mappings(), maps) << "blocks are still mapped";
    // The store's thread closes its sockets after it detects that the last rank has disconnected.
    for (int i = 0; i < 200 && descriptors() != fds; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(descriptors(), fds);
  }
  std::size_t maps = 0, fds = 0;
};

int find(int rank, const void* pointer, std::uint64_t bytes, isthmus_heap_block* block = nullptr,
         std::uint64_t* offset = nullptr) {
  const auto* context = standin::context_of(rank);
  return context->heap_find(context->runtime, pointer, bytes, block, offset);
}

TEST_F(heap_test, all_ranks_access_all_blocks) {
  test::ranks ranks(3, standin::configuration());
  const auto blocks = allocate(ranks, 10000);
  for (int rank = 0; rank < 3; ++rank) {
    isthmus_heap_block block{};
    std::uint64_t offset = 99;
    auto* own = static_cast<char*>(blocks[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(own) % 4096, 0u);
    ASSERT_EQ(find(rank, own + 123, 10000 - 123, &block, &offset), 1);
    EXPECT_EQ(offset, 123u);
    EXPECT_EQ(block.bytes, 10000u);
    for (int other = 0; other < 3; ++other)
      static_cast<char*>(block.peers[other])[rank] = static_cast<char>(10 * rank + other);
  }
  for (int other = 0; other < 3; ++other)
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(static_cast<char*>(blocks[static_cast<std::size_t>(other)])[rank], 10 * rank + other);
}

TEST_F(heap_test, heap_peers_returns_peer_addresses) {
  test::ranks ranks(3, standin::configuration());
  const auto blocks = allocate(ranks, 10000);
  for (int rank = 0; rank < 3; ++rank)
    for (int other = 0; other < 3; ++other) {
      void* peer = nullptr;
      ASSERT_EQ(
          isthmus_memory_peer(ranks[rank], static_cast<char*>(blocks[static_cast<std::size_t>(rank)]) + 9999,
                              other, &peer),
          ISTHMUS_SUCCESS)
          << last_error().message;
      *static_cast<char*>(peer) = static_cast<char>(10 * rank + other);
      EXPECT_EQ(static_cast<char*>(blocks[static_cast<std::size_t>(other)])[9999], 10 * rank + other);
    }
}

TEST_F(heap_test, heap_peers_rejects_other_pointers) {
  test::ranks ranks(2, standin::configuration());
  const auto blocks = allocate(ranks, 4096);
  auto* own = static_cast<char*>(blocks[0]);
  const auto expect_refused = [&](const void* pointer, int rank, const std::string& text) {
    void* peer = own;
    EXPECT_EQ(isthmus_memory_peer(ranks[0], pointer, rank, &peer), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(peer, nullptr);
    EXPECT_NE(std::string(last_error().message).find(text), std::string::npos) << last_error().message;
    EXPECT_STRNE(last_error().hint, "");
  };
  expect_refused(own, -1, "rank = -1 must be in [0, 2)");
  expect_refused(own, 2, "rank = 2 must be in [0, 2)");
  expect_refused(own + 4096, 1, "must lie in a live block");
  expect_refused(blocks[1], 1, "must lie in a live block");
  expect_refused(nullptr, 1, "must lie in a live block");
  EXPECT_EQ(isthmus_memory_peer(ranks[0], own, 1, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], own), ISTHMUS_SUCCESS);
  expect_refused(own, 1, "must lie in a live block");
  void* peer = own;
  EXPECT_EQ(isthmus_memory_peer(nullptr, own, 1, &peer), ISTHMUS_ERROR_INVALID_USAGE);
}

TEST_F(heap_test, find_respects_block_boundaries) {
  test::ranks ranks(1, standin::configuration());
  char outside = 0;
  EXPECT_EQ(find(0, &outside, 1), 0);
  auto* first = static_cast<char*>(allocate(ranks, 4096)[0]);
  auto* second = static_cast<char*>(allocate(ranks, 8192)[0]);
  isthmus_heap_block a{}, b{};
  EXPECT_EQ(find(0, first, 4096, &a), 1);
  EXPECT_EQ(find(0, second, 8192, &b), 1);
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(find(0, first, 4097), 0) << "one byte too many";
  EXPECT_EQ(find(0, first + 4095, 1), 1);
  EXPECT_EQ(find(0, first + 4095, 2), 0);
  EXPECT_EQ(find(0, first - 1, 1), 0);
  EXPECT_EQ(find(0, first, ~std::uint64_t{0}), 0);
  EXPECT_EQ(find(0, nullptr, 1), 0);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], first), ISTHMUS_SUCCESS);
  EXPECT_EQ(find(0, first, 1), 0);
  EXPECT_EQ(find(0, second + 8191, 1), 1);
}

TEST_F(heap_test, invalid_frees_are_rejected) {
  test::ranks ranks(2, standin::configuration());
  const auto blocks = allocate(ranks, 4096);
  int local = 0;
  const auto expect_refused = [&](isthmus_communicator rank, void* pointer) {
    EXPECT_EQ(isthmus_memory_free_symmetric(rank, pointer), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("not the start of a live block"), std::string::npos);
    EXPECT_STRNE(last_error().hint, "");
  };
  expect_refused(ranks[0], &local);
  expect_refused(ranks[0], static_cast<char*>(blocks[0]) + 8);
  expect_refused(ranks[0], blocks[1]);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], blocks[0]), ISTHMUS_SUCCESS);
  expect_refused(ranks[0], blocks[0]);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[1], blocks[1]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[1], nullptr), ISTHMUS_SUCCESS);
  isthmus_communicator destroyed = ranks.release(0);
  isthmus_communicator_destroy(destroyed);
  EXPECT_EQ(isthmus_memory_free_symmetric(destroyed, blocks[0]), ISTHMUS_ERROR_INVALID_USAGE);
}

TEST_F(heap_test, freed_block_stays_readable_for_peers) {
  test::ranks ranks(2, standin::configuration());
  const auto blocks = allocate(ranks, 4096);
  isthmus_heap_block heap_block{};
  ASSERT_EQ(find(1, blocks[1], 1, &heap_block), 1);
  static_cast<char*>(blocks[0])[5] = 42;
  ASSERT_EQ(isthmus_memory_free_symmetric(ranks[0], blocks[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(static_cast<char*>(heap_block.peers[0])[5], 42);
}

TEST_F(heap_test, leaked_blocks_are_released_and_logged) {
  testing::internal::CaptureStderr();
  {
    test::ranks ranks(2, standin::configuration());
    allocate(ranks, 4096);
    allocate(ranks, 100);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("2 block(s) of the symmetric heap were not freed"), std::string::npos) << log;
}

TEST_F(heap_test, zero_bytes_and_invalid_arguments) {
  test::ranks ranks(2, standin::configuration());
  for (const void* block : allocate(ranks, 0)) EXPECT_EQ(block, nullptr);
  EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[0], 8, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  void* pointer = &ranks;
  EXPECT_EQ(isthmus_memory_allocate_symmetric(nullptr, 8, &pointer), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_EQ(pointer, nullptr);
}

// One thread that drives all ranks would wait for itself.
TEST_F(heap_test, allocation_in_a_group_is_rejected) {
  test::ranks ranks(2, standin::configuration());
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  void* pointer = &ranks;
  EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[0], 8, &pointer), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(std::string(last_error().message).find("inside a group"), std::string::npos)
      << last_error().message;
  EXPECT_EQ(pointer, nullptr);
  ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(allocate(ranks, 64).size(), 2u);
}

TEST_F(heap_test, different_sizes_are_a_mismatch_error) {
  test::ranks ranks(3, standin::configuration());
  test::run_on_each_rank(3, [&](int rank) {
    void* pointer = nullptr;
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], rank == 2 ? 64 : 128, &pointer),
              ISTHMUS_ERROR_MISMATCH);
    EXPECT_NE(std::string(last_error().message).find("128 on rank 0 but 64 on rank 2"), std::string::npos)
        << last_error().message;
    EXPECT_EQ(pointer, nullptr);
  });
  EXPECT_EQ(allocate(ranks, 64).size(), 3u) << "the heap is still usable";
}

TEST_F(heap_test, out_of_memory_fails_all_ranks) {
  test::ranks ranks(2, standin::configuration());
  test::run_on_each_rank(2, [&](int rank) {
    void* pointer = nullptr;
    for (const std::uint64_t bytes : {~std::uint64_t{0}, std::uint64_t{1} << 62}) {
      const auto status = isthmus_memory_allocate_symmetric(ranks[rank], bytes, &pointer);
      EXPECT_TRUE(status == ISTHMUS_ERROR_OUT_OF_MEMORY || status == ISTHMUS_ERROR_SYSTEM)
          << last_error().message;
      EXPECT_EQ(pointer, nullptr);
    }
  });
  EXPECT_EQ(allocate(ranks, 64).size(), 2u);
}

TEST_F(heap_test, missing_driver_fails_all_ranks) {
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_OPENCL);
  test::run_on_each_rank(2, [&](int rank) {
    void* pointer = nullptr;
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], 8, &pointer), ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(last_error().message).find("opencl"), std::string::npos) << last_error().message;
  });
}

TEST_F(heap_test, ten_thousand_random_steps) {
  test::ranks ranks(1, standin::configuration());
  std::mt19937_64 random(1234);
  struct allocation {
    std::uint64_t bytes;
    unsigned char fill;
  };
  std::map<unsigned char*, allocation> model;
  const auto intact = [](const auto& entry) {
    const auto& [begin, content] = entry;
    return begin[0] == content.fill && begin[content.bytes - 1] == content.fill &&
           begin[content.bytes / 2] == content.fill;
  };
  for (int step = 0; step < 10000; ++step) {
    if (model.size() < 3 || (model.size() < 60 && random() % 2 == 0)) {
      const std::uint64_t bytes = 1 + random() % (random() % 16 == 0 ? 3 << 20 : 20000);
      auto* begin = static_cast<unsigned char*>(nullptr);
      void* pointer = nullptr;
      ASSERT_EQ(isthmus_memory_allocate_symmetric(ranks[0], bytes, &pointer), ISTHMUS_SUCCESS);
      begin = static_cast<unsigned char*>(pointer);
      const auto fill = static_cast<unsigned char>(random());
      begin[0] = begin[bytes - 1] = begin[bytes / 2] = fill;
      model[begin] = {bytes, fill};
    } else {
      auto victim_block = std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
      ASSERT_TRUE(intact(*victim_block));
      ASSERT_EQ(isthmus_memory_free_symmetric(ranks[0], victim_block->first), ISTHMUS_SUCCESS);
      ASSERT_EQ(find(0, victim_block->first, 1), 0);
      model.erase(victim_block);
    }
    const auto& probe = *std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
    const std::uint64_t position = random() % probe.second.bytes;
    std::uint64_t offset = 0;
    ASSERT_EQ(find(0, probe.first + position, probe.second.bytes - position, nullptr, &offset), 1);
    ASSERT_EQ(offset, position);
    ASSERT_EQ(find(0, probe.first + position, probe.second.bytes - position + 1), 0);
  }
  for (const auto& entry : model) {
    EXPECT_TRUE(intact(entry));
    EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], entry.first), ISTHMUS_SUCCESS);
  }
}

TEST_F(heap_test, segment_with_wrong_cookie_is_rejected) {
  const auto segment = isthmus::shared_segment::create(4096, isthmus::segment_use::user);
  for (const int wrong : {0, 1, 2}) {
    auto address = segment->address();
    address.cookie[0] ^= 1;  // an unknown cookie: must be opened through /proc
    if (wrong == 1) address.bytes += 4096;
    if (wrong == 2) address.fd = 999;
    EXPECT_THROW(isthmus::shared_segment::open(address, isthmus::segment_use::user), isthmus::error);
  }
}

// Processes that connect over TCP write to each other's blocks; then one exits without cleanup. The child is
// forked before the unique id is created, because the thread of its store could hold the allocator's lock
// during a fork.
TEST_F(heap_test, processes) {
  isthmus_unique_id id;
  std::array<int, 2> channel{};
  ASSERT_EQ(pipe(channel.data()), 0);
  const test::scoped_file config(test::host_config);
  const auto run = [&](int rank) {
    const auto options = test::options_for(config);
    isthmus_communicator communicator = nullptr;
    void* pointer = nullptr;
    if (isthmus_communicator_create(&id, rank, 2, &options, &communicator) != ISTHMUS_SUCCESS) return 1;
    if (isthmus_memory_allocate_symmetric(communicator, 1 << 22, &pointer) != ISTHMUS_SUCCESS) return 2;
    auto* values = static_cast<float*>(pointer);
    for (int i = 0; i < 1 << 20; ++i) values[i] = static_cast<float>(rank + i % 100);
    if (isthmus_allreduce(values, values, 1 << 20, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator, nullptr) !=
        ISTHMUS_SUCCESS)
      return 3;
    for (int i = 0; i < 1 << 20; ++i)
      if (values[i] != static_cast<float>(1 + 2 * (i % 100))) return 4;
    if (rank == 1) _exit(0);  // like a crash: nothing is destroyed
    isthmus_communicator_destroy(communicator);
    return 0;
  };
  const pid_t child = fork();
  if (child == 0) {
    close(channel[1]);
    _exit(read(channel[0], &id, sizeof id) == sizeof id ? run(1) : 5);
  }
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  ASSERT_EQ(write(channel[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  for (const int end : channel) close(end);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(0), 0) << last_error().message;
  testing::internal::GetCapturedStderr();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
