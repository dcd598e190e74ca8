// Owners against stand-ins: everything that they took is given back, once, whatever happens in between.
#include "device/owned.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "standins/standin.h"

namespace {

using isthmus::device_driver;
using isthmus::event_timing;
using isthmus::owned_event;
using isthmus::owned_memory;
using isthmus::owned_pinned;
using isthmus::owned_stream;

bool is_hip() { return std::string(std::getenv("TEST_PLATFORM")) == "hip"; }

device_driver& driver() {
  std::string reason;
  device_driver* const found =
      device_driver::get(is_hip() ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA, reason);
  if (found == nullptr) throw std::runtime_error(reason);
  return *found;
}

struct owned_test : testing::Test {
  void SetUp() override {
    driver();
    memory = standin_live_memory();
    streams = standin_live_streams();
    events = standin_live_events();
  }
  void expect_nothing_left() const {
    EXPECT_EQ(standin_live_streams(), streams);
    EXPECT_EQ(standin_live_events(), events);
    EXPECT_EQ(standin_live_memory(), memory);
  }
  std::size_t memory = 0;
  int streams = 0, events = 0;
};

TEST_F(owned_test, give_back_what_they_hold) {
  {
    const owned_stream stream(driver(), 1, isthmus::stream_priority::high);
    const owned_event event(driver(), 1);
    const owned_event timed(driver(), 1, event_timing::on);
    const owned_memory block(driver(), 1, 1000);
    EXPECT_EQ(standin_live_streams(), streams + 1);
    EXPECT_EQ(standin_live_events(), events + 2);
    EXPECT_EQ(standin_live_memory(), memory + 1);
    EXPECT_EQ(block.bytes(), 1000u);
    driver().fill(1, block, 0x5a, block.bytes(), stream);
    driver().record(1, timed, stream);
    driver().record(1, event, stream);
    driver().synchronize(1, stream);
    EXPECT_TRUE(driver().is_done(event));
    EXPECT_TRUE(driver().is_done(timed));
  }
  expect_nothing_left();
}

TEST_F(owned_test, move_and_empty) {
  owned_stream empty;
  EXPECT_EQ(empty.get(), nullptr);
  {
    owned_stream first(driver(), 0);
    void* const handle = first;
    owned_stream second(std::move(first));
    EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): what is left is what is asked
    EXPECT_EQ(second.get(), handle);
    empty = std::move(second);
    EXPECT_EQ(empty.get(), handle);
    EXPECT_EQ(standin_live_streams(), streams + 1);
  }
  EXPECT_EQ(standin_live_streams(), streams + 1) << "who was moved from gives nothing back";
  empty = owned_stream(driver(), 1);
  EXPECT_EQ(standin_live_streams(), streams + 1) << "what it held before is given back";
  std::vector<owned_event> several;
  for (int i = 0; i < 20; ++i) several.emplace_back(driver(), i % 2);  // grows by moving
  EXPECT_EQ(standin_live_events(), events + 20);
  several.clear();
  empty.reset();
  EXPECT_EQ(empty.get(), nullptr);
  expect_nothing_left();
}

// As in a constructor that gives up half-way: members that were made are given back.
TEST_F(owned_test, outlive_no_failed_constructor) {
  struct holder {
    explicit holder(int device)
        : stream(driver(), device), event(driver(), device), block(driver(), device, std::uint64_t{1} << 40) {}
    owned_stream stream;
    owned_event event;
    owned_memory block;
  };
  standin_set_memory(std::size_t{1} << 30);
  EXPECT_THROW(holder(0), isthmus::error);
  standin_set_memory(std::size_t{64} << 30);
  expect_nothing_left();
}

TEST_F(owned_test, pinned_memory_is_zeros_and_kept_for_the_next) {
  constexpr std::uint64_t bytes = 12345;
  void* first = nullptr;
  {
    const owned_pinned block(driver(), bytes);
    first = block;
    EXPECT_EQ(block.bytes(), bytes);
    std::memset(first, 0xff, bytes);
  }
  EXPECT_EQ(standin_live_memory(), memory + 1) << "the driver does not get it back";
  {
    const owned_pinned again(driver(), bytes);
    EXPECT_EQ(again.get(), first);
    const auto* const words = static_cast<const char*>(again.get());
    EXPECT_TRUE(std::all_of(words, words + bytes, [](char each) { return each == 0; }));
    const owned_pinned second(driver(), bytes);
    EXPECT_NE(second.get(), first);
  }
  {
    owned_pinned stuck(driver(), bytes);
    owned_pinned other(driver(), bytes);
    stuck.abandon();
    other.abandon();
    EXPECT_EQ(stuck.get(), nullptr);
    EXPECT_EQ(stuck.bytes(), 0u);
  }
  const owned_pinned fresh(driver(), bytes);
  EXPECT_EQ(standin_live_memory(), memory + 3) << "two are lost for good, this one is new";
}

TEST_F(owned_test, failure_of_the_driver_does_not_leave_a_destructor) {
  {
    const owned_stream stream(driver(), 0);
    driver().destroy_stream(0, stream);
    EXPECT_THROW(driver().destroy_stream(0, stream), isthmus::error) << "as the owner is about to see";
  }
  expect_nothing_left();
}

}  // namespace
