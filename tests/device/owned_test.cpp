// Tests that owners release all objects exactly once, with stand-in devices.
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
  device_driver* const loaded =
      device_driver::get(is_hip() ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA, reason);
  if (loaded == nullptr) throw std::runtime_error(reason);
  return *loaded;
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

TEST_F(owned_test, owners_release_their_objects) {
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

TEST_F(owned_test, moved_from_owners_are_empty) {
  owned_stream empty;
  EXPECT_EQ(empty.get(), nullptr);
  {
    owned_stream first(driver(), 0);
    void* const handle = first;
    owned_stream second(std::move(first));
    EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is tested
    EXPECT_EQ(second.get(), handle);
    empty = std::move(second);
    EXPECT_EQ(empty.get(), handle);
    EXPECT_EQ(standin_live_streams(), streams + 1);
  }
  EXPECT_EQ(standin_live_streams(), streams + 1) << "a moved-from owner must not release anything";
  empty = owned_stream(driver(), 1);
  EXPECT_EQ(standin_live_streams(), streams + 1) << "assignment must release the previous object";
  std::vector<owned_event> several;
  for (int i = 0; i < 20; ++i) several.emplace_back(driver(), i % 2);  // grows by moving
  EXPECT_EQ(standin_live_events(), events + 20);
  several.clear();
  empty.reset();
  EXPECT_EQ(empty.get(), nullptr);
  expect_nothing_left();
}

// If a constructor throws, the members that were already constructed are released.
TEST_F(owned_test, failed_constructor_releases_its_members) {
  struct throwing_owner {
    explicit throwing_owner(int device)
        : stream(driver(), device), event(driver(), device), block(driver(), device, std::uint64_t{1} << 40) {}
    owned_stream stream;
    owned_event event;
    owned_memory block;
  };
  standin_set_memory(std::size_t{1} << 30);
  EXPECT_THROW(throwing_owner(0), isthmus::error);
  standin_set_memory(std::size_t{64} << 30);
  expect_nothing_left();
}

TEST_F(owned_test, pinned_memory_is_zeroed_and_reused) {
  constexpr std::uint64_t bytes = 12345;
  void* first = nullptr;
  {
    const owned_pinned block(driver(), bytes);
    first = block;
    EXPECT_EQ(block.bytes(), bytes);
    std::memset(first, 0xff, bytes);
  }
  EXPECT_EQ(standin_live_memory(), memory + 1) << "pinned memory must not be returned to the driver";
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
    owned_pinned second_buffer(driver(), bytes);
    stuck.abandon();
    second_buffer.abandon();
    EXPECT_EQ(stuck.get(), nullptr);
    EXPECT_EQ(stuck.bytes(), 0u);
  }
  const owned_pinned another(driver(), bytes);
  EXPECT_EQ(standin_live_memory(), memory + 3) << "the two abandoned blocks must not be reused";
}

TEST_F(owned_test, destructors_do_not_throw_driver_errors) {
  {
    const owned_stream stream(driver(), 0);
    driver().destroy_stream(0, stream);
    EXPECT_THROW(driver().destroy_stream(0, stream), isthmus::error)
        << "the owner's destructor gets the same error";
  }
  expect_nothing_left();
}

}  // namespace
