// Tests the flags between the streams of ranks on stand-in devices, and the host's reaction to a dead peer.
#include "device/signal_channel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/completion_events.hpp"

namespace {

using namespace std::chrono_literals;
using isthmus::device_driver;
using isthmus::native_stream;
using isthmus::owned_event;
using isthmus::owned_memory;
using isthmus::owned_stream;
using isthmus::signal_channel;
using isthmus::signal_monitor;
using isthmus::stream_priority;
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

// The words of all ranks, on one device, and a monitor of rank 0.
struct signals : testing::Test {
  signals() {
    for (int rank = 0; rank < ranks; ++rank) {
      const owned_memory& block = blocks.emplace_back(driver(), 0, flag_layout.words() * sizeof(std::uint32_t));
      driver().fill(0, block, 0, block.bytes(), stream);
      addresses.push_back(block);
    }
    driver().synchronize(0, stream);
    channel = signal_channel(addresses, flag_layout);
    monitor.attach(channel, 0);
  }
  void enqueue_words(native_stream target, std::vector<word_step> steps) {
    driver().enqueue_words(0, steps, target);
  }
  // A monitor waits only some milliseconds, which may be too short on a busy machine.
  static bool reads(signal_monitor& reader) {
    for (int attempts = 0; attempts < 1000; ++attempts)
      if (reader.read()) return true;
    return false;
  }

  owned_stream stream{driver(), 0}, peer{driver(), 0};
  std::vector<owned_memory> blocks;
  std::vector<void*> addresses;
  signal_channel channel;
  signal_monitor monitor{driver(), 0, flag_layout.words(), {stream_priority::high, stream_priority::normal}};
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

TEST_F(signals, host_reads_flags_of_peers) {
  enqueue_words(stream, {{word_action::write, channel.ready(0, 1, 2), 77},
                         {word_action::write, channel.acknowledgement(0, 0, 1), 5}});
  driver().synchronize(0, stream);
  ASSERT_TRUE(reads(monitor));
  EXPECT_EQ(monitor.ready(1, 2), 77u);
  EXPECT_EQ(monitor.ready(0, 2), 0u);
  EXPECT_EQ(monitor.acknowledgement(0, 1), 5u);
  EXPECT_EQ(monitor.aborted_peer(), 0u);
}

TEST_F(signals, abort_notifies_all_peers) {
  monitor.notify_abort();
  int attempts = 1000;
  while (!monitor.wait_briefly()) ASSERT_GT(--attempts, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    signal_monitor monitor_of_rank(driver(), 0, flag_layout.words(), {stream_priority::high});
    monitor_of_rank.attach(channel, rank);
    ASSERT_TRUE(reads(monitor_of_rank));
    EXPECT_EQ(monitor_of_rank.aborted_peer(), rank == 0 ? 0u : 1u);
  }
}

// Rank 0 has read the abort of rank 1. Rank 2 must get the number of rank 1, which is the cause.
TEST_F(signals, first_abort_is_passed_on) {
  enqueue_words(stream, {{word_action::write, channel.abort_word(0), 2}});
  driver().synchronize(0, stream);
  ASSERT_TRUE(reads(monitor));
  monitor.notify_abort();
  int attempts = 1000;
  while (!monitor.wait_briefly()) ASSERT_GT(--attempts, 0);
  signal_monitor monitor_of_rank(driver(), 0, flag_layout.words(), {stream_priority::high});
  monitor_of_rank.attach(channel, 2);
  ASSERT_TRUE(reads(monitor_of_rank));
  EXPECT_EQ(monitor_of_rank.aborted_peer(), 2u);
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
    const word_step flag{word_action::write, channel.ready(0, 0, 1), tag};
    monitor.write({&flag, 1});
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
