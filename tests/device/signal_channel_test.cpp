// Tests the flags between the streams of ranks on stand-in devices, and the host's reaction to a dead peer.
#include "device/signal_channel.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "device/completion_events.hpp"
#include "device/owned.hpp"
#include "failure/watchdog.hpp"
#include "memory/signal_memory.hpp"
#include "standins/standin.h"

namespace {

using namespace std::chrono_literals;
using isthmus::device_driver;
using isthmus::native_stream;
using isthmus::owned_event;
using isthmus::owned_stream;
using isthmus::signal_block_address;
using isthmus::signal_channel;
using isthmus::signal_memory;
using isthmus::word_action;
using isthmus::word_step;

constexpr int ranks = 3;
constexpr signal_channel::layout flag_layout{2, ranks, 4};

device_driver& driver() {
  const bool hip = std::string(std::getenv("TEST_PLATFORM")) == "hip";
  std::string reason;
  device_driver* const loaded = device_driver::get(hip ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA, reason);
  if (loaded == nullptr) throw std::runtime_error(reason);
  return *loaded;
}

// The blocks of the ranks of one communicator, all in this process.
std::vector<signal_memory> open_blocks(int size, std::uint64_t bytes) {
  std::vector<signal_memory> memories;
  std::vector<signal_block_address> addresses;
  for (int rank = 0; rank < size; ++rank) {
    memories.emplace_back(driver(), size, bytes);
    addresses.push_back(memories.back().address());
  }
  for (signal_memory& memory : memories) memory.open(addresses);
  return memories;
}

struct signals : testing::Test {
  void enqueue_words(native_stream target, std::vector<word_step> steps) {
    driver().enqueue_words(0, steps, target);
  }

  owned_stream stream{driver(), 0}, peer{driver(), 0};
  std::vector<signal_memory> memories = open_blocks(ranks, flag_layout.bytes());
  signal_channel channel{memories[0].blocks(), flag_layout};
};

TEST_F(signals, flags_do_not_overlap) {
  std::set<std::uint32_t*> places;
  for (int owner = 0; owner < ranks; ++owner) {
    const std::uint32_t* begin = channel.block(owner);
    std::vector<std::uint32_t*> own = {channel.abort_word(owner)};
    for (std::size_t slot = 0; slot < flag_layout.slots; ++slot)
      for (int peer = 0; peer < ranks; ++peer) {
        own.push_back(channel.ready(owner, slot, peer));
        own.push_back(channel.acknowledgement(owner, slot, peer));
      }
    for (std::uint32_t* flag : own) {
      EXPECT_TRUE(places.insert(flag).second);
      EXPECT_GE(flag, begin);
      EXPECT_LT(flag, begin + flag_layout.words());
      EXPECT_EQ((flag - begin) % 4, 0) << "flags must be a stride apart";
    }
  }
}

TEST_F(signals, host_reads_what_streams_write) {
  enqueue_words(stream, {{word_action::write, channel.ready(0, 1, 2), 77},
                         {word_action::write, channel.acknowledgement(0, 0, 1), 5}});
  driver().synchronize(0, stream);
  EXPECT_EQ(signal_channel::read(channel.ready(0, 1, 2)), 77u);
  EXPECT_EQ(signal_channel::read(channel.ready(0, 0, 2)), 0u);
  EXPECT_EQ(signal_channel::read(channel.acknowledgement(0, 0, 1)), 5u);
}

TEST_F(signals, abort_notifies_all_peers) {
  channel.notify_abort(0);
  EXPECT_EQ(channel.aborted_rank(0), std::nullopt);
  EXPECT_EQ(channel.aborted_rank(1), 0);
  EXPECT_EQ(channel.aborted_rank(2), 0);
}

// Rank 0 has received the abort of rank 1. Rank 2 must get the number of rank 1, which is the cause.
TEST_F(signals, first_abort_is_passed_on) {
  signal_channel::write(channel.abort_word(0), 2);
  channel.notify_abort(0);
  EXPECT_EQ(channel.aborted_rank(2), 1);
  EXPECT_EQ(channel.aborted_rank(1), std::nullopt);
}

// A thread that frees memory waits for all streams of the device, and copies and launches wait for this thread.
TEST_F(signals, host_releases_streams_while_the_driver_is_blocked) {
  void* const block = driver().allocate(0, 4096);
  enqueue_words(stream, {{word_action::wait_equal, channel.ready(0, 0, 1), 3}});
  std::atomic<bool> is_freed{false};
  std::thread freeing([&] {
    driver().free(0, block);
    is_freed = true;
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(is_freed);
  signal_channel::write(channel.ready(0, 0, 1), 3);
  freeing.join();
}

TEST(signal_memory, block_is_reused_after_all_ranks_have_released_it) {
  std::vector<signal_memory> memories = open_blocks(2, 4096);
  void* const first = memories[0].blocks()[0];
  *static_cast<std::uint32_t*>(first) = 7;
  memories.erase(memories.begin());
  std::vector<signal_memory> others = open_blocks(2, 4096);
  EXPECT_NE(others[0].blocks()[0], first);
  EXPECT_NE(others[0].blocks()[1], first);
  memories.clear();
  others = open_blocks(2, 4096);
  std::set<void*> blocks;
  for (void* block : others[0].blocks()) {
    blocks.insert(block);
    EXPECT_EQ(*static_cast<std::uint32_t*>(block), 0u) << "not cleared";
  }
  EXPECT_TRUE(blocks.contains(first));
}

TEST(signal_memory, abandoned_block_is_never_reused) {
  std::vector<signal_memory> memories = open_blocks(1, 4096);
  void* const first = memories[0].blocks()[0];
  memories[0].abandon();
  memories.clear();
  for (int attempt = 0; attempt < 3; ++attempt) EXPECT_NE(open_blocks(1, 4096)[0].blocks()[0], first);
}

// The first segment is full, and the second one cannot be pinned.
TEST(signal_memory, failed_segment_leaves_the_others_unchanged) {
  std::vector<std::vector<signal_memory>> communicators;
  std::set<void*> blocks;
  const auto create = [&] {
    communicators.push_back(open_blocks(1, 100 << 10));
    return blocks.insert(communicators.back()[0].blocks()[0]).second;
  };
  for (int count = 0; count < 3; ++count) ASSERT_TRUE(create());
  const bool hip = std::string(std::getenv("TEST_PLATFORM")) == "hip";
  int failures = 0;
  for (int count = 0; count < 3; ++count) try {
      standin_fail_driver(hip ? "hipHostRegister" : "cuMemHostRegister_v2", 1, 2);
      EXPECT_TRUE(create());
    } catch (const isthmus::error& failure) {
      EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_OUT_OF_MEMORY) << failure.what();
      ++failures;
    }
  EXPECT_GT(failures, 0);
  standin_fail_driver("", 0, 0);
  for (int count = 0; count < 3; ++count) EXPECT_TRUE(create()) << "a block in use was given away";
}

TEST(signal_memory, discarded_block_is_reused) {
  void* first = nullptr;
  {
    signal_memory memory(driver(), 2, 4096);
    signal_memory reader(driver(), 1, 4096);
    reader.open(std::vector{memory.address()});
    first = reader.blocks()[0];
    reader.abandon();
    memory.discard();
  }
  EXPECT_EQ(open_blocks(1, 4096)[0].blocks()[0], first);
}

TEST(signal_memory, child_does_not_release_blocks_of_its_parent) {
  std::vector<signal_memory> memories = open_blocks(1, 4096);
  void* const first = memories[0].blocks()[0];
  const pid_t child = fork();
  if (child == 0) {
    memories.clear();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(open_blocks(1, 4096)[0].blocks()[0], first);
}

TEST(signal_memory, blocks_larger_than_a_segment) {
  std::vector<signal_memory> memories = open_blocks(2, 1 << 20);
  auto* const words = static_cast<std::uint32_t*>(memories[0].blocks()[1]);
  words[(1 << 18) - 1] = 9;
  EXPECT_EQ(static_cast<std::uint32_t*>(memories[1].blocks()[1])[(1 << 18) - 1], 9u);
}

TEST(queued_calls, one_gap_ends_an_execution) {
  std::uint32_t reads = 0;
  const auto replayed_call = [&] { return ++reads == 50 ? 0u : 7u; };
  EXPECT_FALSE(isthmus::is_executing(replayed_call, 7, 60));
  EXPECT_EQ(reads, 50u);
  EXPECT_FALSE(isthmus::is_executing([] { return 8u; }, 7, 60));
  EXPECT_TRUE(isthmus::is_executing([] { return 7u; }, 7, 0.001));
}

// A peer is killed right after the last call was enqueued, within one second of the previous call.
// No call follows.
TEST_F(signals, stream_of_killed_peer_is_released_after_timeout) {
  constexpr auto timeout = 100ms;
  constexpr std::uint32_t tag = 0x1234567;
  std::mutex mutex;
  isthmus::completion_events<owned_event> ends;
  std::atomic<bool> aborted{false};
  isthmus::watch_options options;
  options.timeout = timeout;
  options.interval = 5ms;
  options.operation = [&]() -> isthmus::watched_operation {
    const std::lock_guard lock(mutex);
    while (!ends.empty() && isthmus::watchdog_clock::now() - *ends.oldest().start_time >= timeout) {
      if (!driver().is_done(ends.oldest_event())) break;
      ends.drop_oldest();
    }
    return ends.empty() ? isthmus::watched_operation{} : ends.oldest();
  };
  options.on_stuck = [&](std::uint64_t) { return aborted = true; };
  options.aborted = [&] { return aborted.load(); };
  options.on_abort = [&] {
    signal_channel::write(channel.ready(0, 0, 1), tag);
    return true;
  };
  const isthmus::watch watching(std::move(options));
  const auto enqueue = [&](bool peer_lives) {
    if (peer_lives) enqueue_words(peer, {{word_action::write, channel.ready(0, 0, 1), tag}});
    enqueue_words(stream, {{word_action::wait_equal, channel.ready(0, 0, 1), tag},
                           {word_action::write, channel.ready(0, 0, 1), 0}});
    owned_event done(driver(), 0);
    driver().record(0, done, stream);
    const std::lock_guard lock(mutex);
    ends.add(std::move(done), isthmus::watchdog_clock::now());
  };
  for (int call = 0; call < 4; ++call) {
    enqueue(true);
    driver().synchronize(0, stream);
  }
  EXPECT_FALSE(aborted);
  enqueue(false);
  driver().synchronize(0, stream);  // hangs if the stream is not released
  EXPECT_TRUE(aborted);
}

}  // namespace
