// The symmetric heap on stand-in devices: ranks in threads and processes, pools, inaccessible peers and failing
// sharing methods.
#include <isthmus/memory.h>
#include <isthmus/tools.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "core/support.hpp"
#include "standins/standin.h"

namespace {

using test::last_error;

bool is_hip() { return std::string(std::getenv("TEST_PLATFORM")) == "hip"; }
isthmus_platform platform() { return is_hip() ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA; }

// Ranks of this process, one per device.
class device_ranks {
 public:
  explicit device_ranks(int size)
      : m_file(standin::configuration()), m_handles(static_cast<std::size_t>(size)) {
    std::vector<isthmus_device> devices;
    for (int i = 0; i < size; ++i) devices.push_back({platform(), i});
    const auto options = test::options_for(m_file);
    EXPECT_EQ(isthmus_communicator_create_all(size, devices.data(), &options, m_handles.data()),
              ISTHMUS_SUCCESS)
        << last_error().message;
  }
  ~device_ranks() {
    for (auto& handle : m_handles) isthmus_communicator_destroy(handle);
  }
  device_ranks(const device_ranks&) = delete;
  device_ranks& operator=(const device_ranks&) = delete;
  isthmus_communicator operator[](int rank) const { return m_handles[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(m_handles.size()); }

 private:
  test::scoped_file m_file;
  std::vector<isthmus_communicator> m_handles;
};

using pointers = std::vector<unsigned char*>;

pointers allocate(const device_ranks& ranks, std::uint64_t bytes) {
  pointers blocks(static_cast<std::size_t>(ranks.size()));
  test::run_on_each_rank(ranks.size(), [&](int rank) {
    void* pointer = nullptr;
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], bytes, &pointer), ISTHMUS_SUCCESS)
        << last_error().message;
    blocks[static_cast<std::size_t>(rank)] = static_cast<unsigned char*>(pointer);
  });
  return blocks;
}

void free_all(const device_ranks& ranks, const pointers& blocks) {
  for (int rank = 0; rank < ranks.size(); ++rank)
    EXPECT_EQ(isthmus_memory_free_symmetric(ranks[rank], blocks[static_cast<std::size_t>(rank)]),
              ISTHMUS_SUCCESS);
}

isthmus_heap_block find(int rank, const void* pointer, std::uint64_t bytes) {
  const auto* context = standin::context_of(rank);
  isthmus_heap_block block{};
  EXPECT_EQ(context->heap_find(context->runtime, pointer, bytes, &block, nullptr), 1);
  return block;
}

struct device_heap_test : testing::Test {
  void SetUp() override {
    standin::reset();
    device_ranks(1);  // creates what the process never releases
    live = standin_live_memory();
    blocks = isthmus_memory_live_blocks();
  }
  void TearDown() override {
    EXPECT_EQ(standin_live_memory(), live);
    EXPECT_EQ(isthmus_memory_live_blocks(), blocks);
  }
  std::size_t live = 0;
  std::uint64_t blocks = 0;
};

// Runs first: the child must be forked before this process has threads of a driver.
struct process_result {
  isthmus_status status;
  unsigned char found[2];
};

process_result run_rank(const isthmus_unique_id& id, int rank) {
  const test::scoped_file config(standin::configuration());
  auto options = test::options_for(config);
  options.device = {platform(), rank};
  process_result result{};
  isthmus_communicator communicator = nullptr;
  result.status = isthmus_communicator_create(&id, rank, 2, &options, &communicator);
  if (result.status != ISTHMUS_SUCCESS) return result;
  const auto* context = standin::context_of(rank);
  for (int round = 0; round < 2; ++round) {
    void* pointer = nullptr;
    const std::uint64_t bytes = round == 0 ? 5000 : 3 << 20;  // from a pool, then a separate segment
    result.status = isthmus_memory_allocate_symmetric(communicator, bytes, &pointer);
    if (result.status != ISTHMUS_SUCCESS) return result;
    isthmus_heap_block block{};
    context->heap_find(context->runtime, pointer, bytes, &block, nullptr);
    static_cast<unsigned char*>(block.peers[1 - rank])[bytes - 1] = static_cast<unsigned char>(7 + rank);
    int token = 0, tokens[2];
    context->allgather(context->runtime, &token, tokens, sizeof token);  // both ranks have written
    result.found[round] = static_cast<unsigned char*>(pointer)[bytes - 1];
    context->allgather(context->runtime, &token, tokens, sizeof token);
    result.status = isthmus_memory_free_symmetric(communicator, pointer);
  }
  isthmus_communicator_destroy(communicator);
  return result;
}

void write_into_each_other(const char* failing) {
  isthmus_unique_id id;
  std::array<int, 2> down{}, up{};
  ASSERT_EQ(pipe(down.data()), 0);
  ASSERT_EQ(pipe(up.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (read(down[0], &id, sizeof id) != sizeof id) _exit(1);
    if (failing != nullptr) standin_fail_driver(failing, 1, 999);
    const auto result = run_rank(id, 1);
    _exit(write(up[1], &result, sizeof result) == sizeof result ? 0 : 2);
  }
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  ASSERT_EQ(write(down[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  const auto own_result = run_rank(id, 0);
  close(up[1]);
  process_result peer_result{};
  EXPECT_EQ(read(up[0], &peer_result, sizeof peer_result), static_cast<ssize_t>(sizeof peer_result));
  EXPECT_EQ(own_result.status, ISTHMUS_SUCCESS) << last_error().message;
  EXPECT_EQ(peer_result.status, ISTHMUS_SUCCESS);
  for (const int round : {0, 1}) {
    EXPECT_EQ(own_result.found[round], 8);
    EXPECT_EQ(peer_result.found[round], 7);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int end : {down[0], down[1], up[0]}) close(end);
}

TEST(device_heap_processes, write_to_peer_blocks) { write_into_each_other(nullptr); }

TEST(device_heap_processes, share_by_handle_if_descriptors_fail) {
  if (is_hip()) GTEST_SKIP() << "HIP has no other sharing method";
  testing::internal::CaptureStderr();
  write_into_each_other("cuMemImportFromShareableHandle");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("shared by interprocess handle"), std::string::npos) << log;
  EXPECT_GT(standin_driver_calls("cuIpcOpenMemHandle_v2"), 0);
}

TEST_F(device_heap_test, all_ranks_access_all_bytes_at_all_sizes) {
  const device_ranks ranks(3);
  const std::uint64_t mib = 1 << 20;
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{4097}, mib, mib + 1, 2 * mib - 1, 2 * mib, 2 * mib + 1, 7 * mib + 5}) {
    const auto blocks = allocate(ranks, bytes);
    for (int rank = 0; rank < 3; ++rank) {
      auto* const own = blocks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(own) % 4096, 0u);
      const auto block = find(rank, own + bytes - 1, 1);
      EXPECT_EQ(block.bytes, bytes);
      EXPECT_EQ(block.peers[rank], own);
      for (int other = 0; other < 3; ++other) {
        auto* const peer = static_cast<unsigned char*>(block.peers[other]);
        peer[0] = static_cast<unsigned char>(100 + other);
        peer[bytes - 1] = static_cast<unsigned char>(100 + other);
      }
    }
    for (std::size_t other = 0; other < 3; ++other) {
      EXPECT_EQ(blocks[other][0], 100 + other);
      EXPECT_EQ(blocks[other][bytes - 1], 100 + other);
    }
    free_all(ranks, blocks);
  }
}

TEST_F(device_heap_test, small_blocks_share_a_segment_at_equal_offsets) {
  const device_ranks ranks(3);
  const char* const create = is_hip() ? "hipExtMallocWithFlags" : "cuMemCreate";
  const int before = standin_driver_calls(create);
  std::vector<pointers> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(allocate(ranks, 5000));
  EXPECT_EQ(standin_driver_calls(create) - before, 3) << "one pool on each rank";
  for (const auto& block : blocks)
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(block[rank] - blocks[0][rank], block[0] - blocks[0][0]);
  const auto more = allocate(ranks, 1 << 20);
  for (int i = 0; i < 20; ++i) blocks.push_back(allocate(ranks, 1 << 20));
  EXPECT_EQ(standin_driver_calls(create) - before, 9) << "pools grow";
  std::map<const unsigned char*, int> address_counts;
  for (const auto& block : blocks) EXPECT_EQ(address_counts[block[0]]++, 0);
  free_all(ranks, more);
  for (const auto& block : blocks) free_all(ranks, block);
}

TEST_F(device_heap_test, memory_is_reused_after_all_ranks_freed_it) {
  const device_ranks ranks(2);
  const auto first = allocate(ranks, 100);
  const auto found = find(1, first[1], 1);
  ASSERT_EQ(isthmus_memory_free_symmetric(ranks[0], first[0]), ISTHMUS_SUCCESS);
  const auto second = allocate(ranks, 100);
  EXPECT_NE(second[0], first[0]) << "rank 1 may still use it";
  static_cast<unsigned char*>(found.peers[0])[5] = 42;
  EXPECT_EQ(first[0][5], 42);
  ASSERT_EQ(isthmus_memory_free_symmetric(ranks[1], first[1]), ISTHMUS_SUCCESS);
  const auto third = allocate(ranks, 100);
  EXPECT_EQ(third, first);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], third[0]), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], third[0]), ISTHMUS_ERROR_INVALID_ARGUMENT) << "double free";
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[1], second[0]), ISTHMUS_ERROR_INVALID_ARGUMENT)
      << "a block of rank 0";
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[1], third[1]), ISTHMUS_SUCCESS);
  free_all(ranks, second);
}

TEST_F(device_heap_test, peers_without_access_are_null) {
  const device_ranks ranks(3);
  standin_connect(0, 2, 0);
  testing::internal::CaptureStderr();
  const auto blocks = allocate(ranks, 3 << 20);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 2 is not accessible: device 0"), std::string::npos) << log;
  const auto block = find(0, blocks[0], 1);
  EXPECT_EQ(block.peers[0], blocks[0]);
  EXPECT_EQ(block.peers[1], blocks[1]);
  EXPECT_EQ(block.peers[2], nullptr);
  EXPECT_EQ(find(2, blocks[2], 1).peers[0], blocks[0]) << "the opposite direction is accessible";
  standin_connect(0, 2, 1);
  free_all(ranks, blocks);
}

TEST_F(device_heap_test, out_of_memory_fails_all_ranks_and_heap_survives) {
  const device_ranks ranks(3);
  const auto before = allocate(ranks, 64);
  for (const std::uint64_t bytes : {std::uint64_t{3} << 20, std::uint64_t{1} << 20}) {
    // A separate segment, and a new pool (seven blocks fill the rest of the first one).
    std::vector<pointers> filling;
    for (int i = 0; i < (bytes == 1 << 20 ? 7 : 0); ++i) filling.push_back(allocate(ranks, bytes));
    standin_fail_driver(is_hip() ? "hipExtMallocWithFlags" : "cuMemCreate", 2, 2);
    std::array<isthmus_status, 3> statuses{};
    test::run_on_each_rank(3, [&](int rank) {
      void* pointer = statuses.data();
      statuses[static_cast<std::size_t>(rank)] =
          isthmus_memory_allocate_symmetric(ranks[rank], bytes, &pointer);
      EXPECT_EQ(pointer, nullptr);
    });
    EXPECT_EQ(std::count(statuses.begin(), statuses.end(), ISTHMUS_ERROR_OUT_OF_MEMORY), 1);
    EXPECT_EQ(std::count(statuses.begin(), statuses.end(), ISTHMUS_ERROR_REMOTE), 2);
    free_all(ranks, allocate(ranks, bytes));
    for (const auto& block : filling) free_all(ranks, block);
  }
  free_all(ranks, before);
}

TEST_F(device_heap_test, backend_blocks_are_zeroed_and_freed_by_id) {
  const device_ranks ranks(2);
  const auto dirty = allocate(ranks, 9000);
  for (auto* block : dirty) std::fill(block, block + 9000, 0xff);
  free_all(ranks, dirty);
  std::array<isthmus_heap_block, 2> blocks{};
  const std::uint64_t programs = isthmus_memory_live_blocks();
  test::run_on_each_rank(2, [&](int rank) {
    const auto* context = standin::context_of(rank);
    auto& block = blocks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(context->heap_allocate(context->runtime, 9000, &block), ISTHMUS_SUCCESS);
    const auto* own = static_cast<unsigned char*>(block.peers[rank]);
    EXPECT_EQ(std::count(own, own + 9000, 0), 9000);
  });
  EXPECT_EQ(blocks[0].id, blocks[1].id);
  EXPECT_EQ(blocks[0].peers[1], blocks[1].peers[1]);
  EXPECT_EQ(blocks[0].peers[0], dirty[0]) << "the memory is reused";
  EXPECT_EQ(isthmus_memory_live_blocks(), programs);
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], blocks[0].peers[0]), ISTHMUS_ERROR_INVALID_ARGUMENT)
      << "the program must not free it";
  for (int rank = 0; rank < 2; ++rank) {
    const auto* context = standin::context_of(rank);
    EXPECT_EQ(context->heap_free(context->runtime, blocks[0].id), ISTHMUS_SUCCESS);
    EXPECT_EQ(context->heap_free(context->runtime, blocks[0].id), ISTHMUS_ERROR_INVALID_ARGUMENT);
  }
}

TEST_F(device_heap_test, missing_device_is_an_error) {
  const test::scoped_file config(standin::configuration());
  const auto options = test::options_for(config);
  const isthmus_device device{platform(), 99};
  isthmus_communicator communicator = nullptr;
  ASSERT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator), ISTHMUS_SUCCESS);
  void* pointer = nullptr;
  EXPECT_EQ(isthmus_memory_allocate_symmetric(communicator, 8, &pointer), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(last_error().message).find("device.ordinal = 99 must be below 8"), std::string::npos)
      << last_error().message;
  isthmus_communicator_destroy(communicator);
}

// Ranks free at different times. Live blocks must never overlap on any rank.
TEST_F(device_heap_test, random_steps_with_independent_frees) {
  constexpr int size = 3;
  const device_ranks ranks(size);
  struct live_block {
    std::uint64_t bytes;
    pointers addresses;
    std::array<bool, size> is_held;
    unsigned char fill;
  };
  std::vector<live_block> model;
  std::mt19937_64 random(77);
  const auto check = [&](const live_block& block, std::size_t rank) {
    EXPECT_EQ(block.addresses[rank][0], block.fill);
    EXPECT_EQ(block.addresses[rank][block.bytes / 2], block.fill);
    EXPECT_EQ(block.addresses[rank][block.bytes - 1], block.fill);
  };
  for (int step = 0; step < 600; ++step) {
    if (model.size() < 4 || (model.size() < 40 && random() % 2 == 0)) {
      const std::uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 3u << 20 : 50000u);
      live_block new_block{
          bytes, allocate(ranks, bytes), {true, true, true}, static_cast<unsigned char>(random())};
      for (auto* data : new_block.addresses) data[0] = data[bytes / 2] = data[bytes - 1] = new_block.fill;
      model.push_back(std::move(new_block));
    } else {
      auto& block = model[random() % model.size()];
      const std::size_t rank = random() % size;
      if (!block.is_held[rank]) continue;
      check(block, rank);
      block.is_held[rank] = false;
      ASSERT_EQ(isthmus_memory_free_symmetric(ranks[static_cast<int>(rank)], block.addresses[rank]),
                ISTHMUS_SUCCESS);
      std::erase_if(model, [](const live_block& each) { return each.is_held == std::array<bool, size>{}; });
    }
  }
  for (const auto& block : model)
    for (std::size_t rank = 0; rank < size; ++rank)
      if (block.is_held[rank]) {
        check(block, rank);
        EXPECT_EQ(isthmus_memory_free_symmetric(ranks[static_cast<int>(rank)], block.addresses[rank]),
                  ISTHMUS_SUCCESS);
      }
}

}  // namespace
