// Tests the driver layer with stand-ins: loading, calls to the vendor functions, and what other devices and
// processes can access.
#include "device/driver.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "standins/standin.h"

namespace {

using isthmus::device_driver;
using isthmus::sharing_method;
using isthmus::stream_priority;

bool is_hip() { return std::string(std::getenv("TEST_PLATFORM")) == "hip"; }
isthmus_platform platform() { return is_hip() ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA; }

device_driver& driver() {
  std::string reason;
  device_driver* const loaded = device_driver::get(platform(), reason);
  if (loaded == nullptr) throw std::runtime_error(reason);
  return *loaded;
}

template <typename Function>
isthmus_error_info error_of_call(Function&& function) {
  try {
    function();
  } catch (const isthmus::error& caught) {
    return caught.info();
  }
  return {};
}

struct driver_test : testing::Test {
  void SetUp() override { live_before_test = (driver(), standin_live_memory()); }
  void TearDown() override {
    EXPECT_EQ(standin_live_memory(), live_before_test);
    EXPECT_EQ(standin_context_depth(), 0) << "the previous context was not restored";
    standin_set_memory(std::size_t{64} << 30);
  }
  std::size_t live_before_test = 0;
};

// A stream that is destroyed with its scope. finish() waits for its work.
struct scoped_stream {
  explicit scoped_stream(int device)
      : device(device), stream(driver().create_stream(device, stream_priority::high)) {}
  ~scoped_stream() { driver().destroy_stream(device, stream); }
  void finish() const { driver().synchronize(device, stream); }
  int device;
  isthmus::native_stream stream;
};

// Must be the first test: the child is forked before this process has driver threads. It receives the handle
// through a pipe.
TEST(driver_processes, write_to_blocks_of_each_other) {
  std::array<int, 2> down{}, up{};
  ASSERT_EQ(pipe(down.data()), 0);
  ASSERT_EQ(pipe(up.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    isthmus::shared_handle handle{};
    if (read(down[0], &handle, sizeof handle) != sizeof handle) _exit(1);
    auto* const mapped = static_cast<unsigned char*>(driver().import_shared(1, handle));
    const scoped_stream own(1);
    driver().fill(1, mapped + 100, 0xab, 50, own.stream);
    own.finish();
    driver().release_import(1, mapped);
    _exit(write(up[1], "x", 1) == 1 ? 0 : 2);
  }
  auto* const block = static_cast<unsigned char*>(driver().allocate_shared(0, 4096));
  const auto handle = driver().export_shared(block);
  ASSERT_EQ(write(down[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  close(up[1]);
  char answer = 0;
  EXPECT_EQ(read(up[0], &answer, 1), 1);
  EXPECT_EQ(block[99], 0);
  EXPECT_EQ(block[100], 0xab);
  EXPECT_EQ(block[149], 0xab);
  EXPECT_EQ(block[150], 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  driver().free_shared(0, block);
  for (const int end : {down[0], down[1], up[0]}) close(end);
}

TEST_F(driver_test, lists_devices_and_peer_access) {
  EXPECT_EQ(driver().device_count(), 8);
  EXPECT_EQ(driver().name(3), "stand-in device 3");
  EXPECT_NE(driver().bus_id(1), driver().bus_id(2));
  EXPECT_NE(driver().version().find(is_hip() ? "HIP 6.4" : "CUDA driver 13.0"), std::string::npos)
      << driver().version();
  EXPECT_TRUE(driver().can_access_peer(0, 1));
  EXPECT_TRUE(driver().can_access_peer(0, 0));
  standin_connect(0, 1, 0);
  EXPECT_FALSE(driver().can_access_peer(0, 1));
  EXPECT_TRUE(driver().can_access_peer(1, 0));
  standin_connect(0, 1, 1);
  std::string reason;
  EXPECT_EQ(device_driver::get(ISTHMUS_PLATFORM_HOST, reason), nullptr);
  EXPECT_NE(reason, "");
}

TEST_F(driver_test, plain_memory_has_an_owner) {
  void* const block = driver().allocate(5, 1000);
  EXPECT_EQ(driver().owner_of(block), 5);
  EXPECT_EQ(driver().owner_of(static_cast<char*>(block) + 999), 5);
  int local = 0;
  EXPECT_EQ(driver().owner_of(&local), -1);
  EXPECT_EQ(driver().owner_of(nullptr), -1);
  void* const pinned = driver().allocate_host(4096);
  EXPECT_EQ(driver().owner_of(pinned), -1);
  driver().free_host(pinned);
  driver().free(5, block);
}

TEST_F(driver_test, out_of_memory_keeps_existing_blocks) {
  standin_set_memory(1 << 20);
  void* const block = driver().allocate(0, 1 << 19);
  EXPECT_EQ(driver().memory_info(0).free_bytes, std::uint64_t{1} << 19);
  const auto failure = error_of_call([] { driver().allocate(0, 1 << 20); });
  EXPECT_EQ(failure.status, ISTHMUS_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(failure.native_code, 2);
  EXPECT_NE(std::string(failure.message).find("1048576 bytes on device 0"), std::string::npos)
      << failure.message;
  EXPECT_EQ(error_of_call([] { driver().allocate_shared(0, 4 << 20); }).status, ISTHMUS_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(error_of_call([] { driver().allocate_shared(0, ~std::uint64_t{0}); }).status,
            ISTHMUS_ERROR_OUT_OF_MEMORY);
  std::memset(block, 1, 1 << 19);
  driver().free(0, block);
}

TEST_F(driver_test, wrong_devices_and_pointers_are_errors) {
  EXPECT_EQ(error_of_call([] { driver().allocate(99, 64); }).status, ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(error_of_call([] { driver().allocate(-1, 64); }).status, ISTHMUS_ERROR_BACKEND);
  void* const shared = driver().allocate_shared(1, 64);
  EXPECT_EQ(error_of_call([&] { driver().free_shared(2, shared); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
  driver().free_shared(1, shared);
  EXPECT_EQ(error_of_call([&] { driver().free_shared(1, shared); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(error_of_call([&] { driver().export_shared(shared); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST_F(driver_test, shared_blocks_are_zero_and_need_peer_access) {
  auto* const block = static_cast<unsigned char*>(driver().allocate_shared(0, 3 << 20));
  EXPECT_EQ(std::count(block, block + (3 << 20), 0), 3 << 20);
  const scoped_stream peer(1);
  std::array<unsigned char, 64> received{};
  const isthmus::device_copy fetch{received.data(), block + 5, received.size()};
  if (!is_hip()) {  // copies of plain memory, which HIP uses, do not need peer access
    EXPECT_NE(error_of_call([&] { driver().copy(1, {&fetch, 1}, peer.stream); }).status, ISTHMUS_SUCCESS);
  }
  EXPECT_NE(error_of_call([&] { driver().fill(1, block, 7, 64, peer.stream); }).status, ISTHMUS_SUCCESS);
  driver().allow_access(block, 1);
  driver().allow_access(block, 1);
  driver().fill(1, block, 7, 64, peer.stream);
  driver().copy(1, {&fetch, 1}, peer.stream);
  peer.finish();
  EXPECT_EQ(received[58], 7);
  EXPECT_EQ(received[59], 0);
  driver().free_shared(0, block);
}

TEST_F(driver_test, failed_mapping_leaks_nothing) {
  if (is_hip()) GTEST_SKIP() << "HIP blocks are shared by handle";
  for (const char* function : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    standin_fail_driver(function, 1, 2);
    EXPECT_EQ(error_of_call([] { driver().allocate_shared(0, 64); }).status, ISTHMUS_ERROR_OUT_OF_MEMORY)
        << function;
  }
  standin_fail_driver("cuMemsetD8Async", 1, 700);
  const auto failure = error_of_call([] { driver().allocate_shared(0, 64); });
  EXPECT_EQ(failure.status, ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(failure.native_code, 700);
}

// Returns whether all `count` bytes of `block` are equal to `value`.
bool is_filled(const unsigned char* block, std::uint64_t count, unsigned char value) {
  return std::count(block, block + count, value) == static_cast<std::ptrdiff_t>(count);
}

TEST_F(driver_test, mapped_blocks_grow_and_shrink_by_pages) {
  if (is_hip()) {
    EXPECT_EQ(error_of_call([] { driver().allocate_mapped(0, 64); }).status, ISTHMUS_ERROR_UNSUPPORTED);
    return;
  }
  const std::uint64_t page = driver().granularity(0);
  const auto used_bytes = [] {
    return driver().memory_info(0).total_bytes - driver().memory_info(0).free_bytes;
  };
  const std::uint64_t initial_bytes = used_bytes();
  auto* block = static_cast<unsigned char*>(driver().allocate_mapped(0, 1));
  EXPECT_EQ(driver().owner_of(block), 0);
  std::uint64_t filled_bytes = 0;  // bytes with value 1, 2, ... page by page
  int moves = 0;
  for (const std::uint64_t bytes : {page - 1, page, page + 1, 2 * page, 2 * page + 1, 3 * page, 3 * page + 1,
                                    7 * page - 5, 16 * page + 9}) {
    auto* const place = static_cast<unsigned char*>(driver().resize_mapped(0, block, bytes));
    moves += place != block ? 1 : 0;
    block = place;
    const std::uint64_t rounded_bytes = (bytes + page - 1) / page * page;
    EXPECT_EQ(used_bytes() - initial_bytes, rounded_bytes) << bytes;
    for (std::uint64_t offset = 0; offset < rounded_bytes; offset += page) {
      const auto value = static_cast<unsigned char>(offset / page + 1);
      if (offset >= filled_bytes) std::memset(block + offset, value, page);
      EXPECT_TRUE(is_filled(block + offset, page, value)) << "page " << offset / page << " at " << bytes;
    }
    filled_bytes = rounded_bytes;
  }
  EXPECT_GT(moves, 0);
  EXPECT_LT(moves, 6) << "addresses are reserved ahead";
  void* const same = driver().resize_mapped(0, block, 4 * page);
  EXPECT_EQ(same, block);
  EXPECT_LT(used_bytes() - initial_bytes, 16 * page);
  EXPECT_TRUE(is_filled(block + 3 * page, page, 4));
  EXPECT_EQ(error_of_call([&] { driver().resize_mapped(1, block, page); }).status,
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  driver().free_mapped(0, block);
  EXPECT_EQ(used_bytes(), initial_bytes);
  EXPECT_EQ(error_of_call([&] { driver().free_mapped(0, block); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST_F(driver_test, failed_growth_leaves_the_block_unchanged) {
  if (is_hip()) GTEST_SKIP() << "HIP blocks do not grow";
  const std::uint64_t page = driver().granularity(0);
  auto* const block = static_cast<unsigned char*>(driver().allocate_mapped(0, page));
  std::memset(block, 5, page);
  const std::size_t live_before = standin_live_memory();
  // 9 pages need a new address range, 2 do not. The second mapping of a move is that of the new pages.
  for (const std::uint64_t pages : {2, 9})
    for (const auto& [function, nth] :
         {std::pair("cuMemCreate", 1), std::pair("cuMemAddressReserve", 1), std::pair("cuMemMap", 1),
          std::pair("cuMemMap", 2), std::pair("cuMemSetAccess", 1), std::pair("cuMemSetAccess", 2)}) {
      if (pages == 2 && (nth == 2 || std::string(function) == "cuMemAddressReserve")) continue;
      standin_fail_driver(function, nth, 2);
      EXPECT_EQ(error_of_call([&] { driver().resize_mapped(0, block, pages * page); }).status,
                ISTHMUS_ERROR_OUT_OF_MEMORY)
          << function << " " << nth << ", " << pages << " pages";
      EXPECT_EQ(standin_live_memory(), live_before);
      EXPECT_TRUE(is_filled(block, page, 5));
    }
  driver().free_mapped(0, block);
}

TEST_F(driver_test, enabled_peers_can_access_mapped_blocks) {
  if (is_hip()) GTEST_SKIP() << "HIP blocks do not grow";
  const std::uint64_t page = driver().granularity(2);
  auto* block = static_cast<unsigned char*>(driver().allocate_mapped(2, 64));
  const scoped_stream peer(3);
  std::vector<unsigned char> received(3 * page);
  const auto fetch = [&](std::uint64_t bytes) {
    const isthmus::device_copy request{received.data(), block, bytes};
    driver().copy(3, {&request, 1}, peer.stream);
    peer.finish();
  };
  EXPECT_NE(error_of_call([&] { fetch(64); }).status, ISTHMUS_SUCCESS);
  driver().enable_peer(3, 2);
  std::memset(block, 8, page);
  fetch(page);
  EXPECT_TRUE(is_filled(received.data(), page, 8));
  block = static_cast<unsigned char*>(driver().resize_mapped(2, block, 3 * page));
  std::memset(block + page, 9, 2 * page);
  fetch(3 * page);
  EXPECT_TRUE(is_filled(received.data(), page, 8));
  EXPECT_TRUE(is_filled(received.data() + page, 2 * page, 9));
  driver().free_mapped(2, block);
}

TEST_F(driver_test, copies_are_batched_unless_captured) {
  if (is_hip()) GTEST_SKIP() << "HIP copies one by one";
  const scoped_stream own(0);
  std::vector<std::uint32_t> from(100), to(100, 0);
  for (std::uint32_t i = 0; i < 100; ++i) from[i] = 1000 + i;
  std::vector<isthmus::device_copy> copies;
  for (std::size_t i = 0; i < 100; ++i) copies.push_back({&to[i], &from[99 - i], i == 50 ? 0u : 4u});
  const int batches = standin_driver_calls("cuMemcpyBatchAsync_v2"),
            single = standin_driver_calls("cuMemcpyAsync");
  driver().copy(0, copies, own.stream);
  own.finish();
  EXPECT_EQ(standin_driver_calls("cuMemcpyBatchAsync_v2") - batches, 4);
  EXPECT_EQ(standin_driver_calls("cuMemcpyAsync"), single);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(to[i], i == 50 ? 0u : 1099 - i);
  standin_set_capturing(own.stream, 1);
  EXPECT_TRUE(driver().is_capturing(0, own.stream));
  driver().copy(0, std::span(copies).first(3), own.stream);
  EXPECT_EQ(standin_driver_calls("cuMemcpyAsync") - single, 3);
  standin_set_capturing(own.stream, 0);
  driver().copy(0, std::span(copies).first(3), nullptr);
  EXPECT_EQ(standin_driver_calls("cuMemcpyAsync") - single, 6);
  driver().copy(0, {}, own.stream);
  driver().copy(0, std::span(copies).subspan(50, 1), own.stream);
  driver().synchronize(0, nullptr);
}

TEST_F(driver_test, events_order_streams_across_devices) {
  const scoped_stream first(0), second(1);
  auto* const word = static_cast<std::uint32_t*>(driver().allocate_host(64));
  word[0] = word[1] = 0;
  const auto event = driver().create_event(0);
  driver().wait_word(0, &word[0], 1, first.stream);
  driver().record(0, event, first.stream);
  driver().wait(1, second.stream, event);
  driver().write_word(1, &word[1], 9, second.stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(driver().is_done(event));
  EXPECT_EQ(std::atomic_ref(word[1]).load(), 0u);
  std::atomic_ref(word[0]).store(1);
  second.finish();
  EXPECT_TRUE(driver().is_done(event));
  EXPECT_EQ(word[1], 9u);
  driver().destroy_event(event);
  driver().free_host(word);
}

TEST_F(driver_test, counters_may_wrap_around) {
  const scoped_stream own(0);
  auto* const word = static_cast<std::uint32_t*>(driver().allocate_host(64));
  *word = 3;  // five steps after 0xfffffffe
  driver().wait_word(0, word, 0xfffffffeu, own.stream);
  own.finish();
  driver().free_host(word);
}

TEST_F(driver_test, only_created_streams_are_non_blocking) {
  const scoped_stream own(0);
  EXPECT_FALSE(driver().is_blocking(0, own.stream));
  EXPECT_TRUE(driver().is_blocking(0, nullptr));
}

TEST_F(driver_test, waits_for_words_can_flush) {
  EXPECT_EQ(driver().needs_flush(0), !is_hip());  // as the stand-in reports
  if (!driver().needs_flush(0)) return;
  const scoped_stream own(0);
  auto* const word = static_cast<std::uint32_t*>(driver().allocate_host(sizeof(std::uint32_t)));
  *word = 6;
  driver().wait_word_and_flush(0, word, 7, own.stream);
  driver().write_word(0, word, 9, own.stream);
  std::atomic_ref<std::uint32_t>(*word).store(7);
  own.finish();
  EXPECT_EQ(*word, 9U);
  driver().free_host(word);
}

TEST_F(driver_test, words_wait_for_an_exact_value) {
  const scoped_stream own(0);
  auto* const word = static_cast<std::uint32_t*>(driver().allocate_host(64));
  word[0] = 8;  // greater than the value: it would satisfy a counter wait, but not an exact one
  word[1] = 0;
  using isthmus::word_action;
  const std::array<isthmus::word_step, 3> steps{{{word_action::wait_equal, &word[0], 7},
                                                 {word_action::write, &word[1], 5},
                                                 {word_action::write, &word[0], 0}}};
  driver().enqueue_words(0, steps, own.stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(std::atomic_ref(word[1]).load(), 0u);
  std::atomic_ref(word[0]).store(7);
  own.finish();
  EXPECT_EQ(word[1], 5u);
  EXPECT_EQ(word[0], 0u);
  driver().free_host(word);
}

TEST_F(driver_test, end_export_closes_the_descriptor) {
  void* const block = driver().allocate_shared(0, 64);
  const auto handle = driver().export_shared(block);
  EXPECT_EQ(driver().export_shared(block).bytes, handle.bytes)
      << "repeated exports must return the same handle";
  if (!is_hip()) {  // the same process may map a block a second time
    auto* const again = static_cast<char*>(driver().import_shared(1, handle));
    EXPECT_EQ(driver().owner_of(again), 0);
    static_cast<char*>(block)[7] = 42;
    EXPECT_EQ(again[7], 42);
    driver().release_import(1, again);
    driver().end_export(block);
    EXPECT_EQ(error_of_call([&] { driver().import_shared(1, handle); }).status, ISTHMUS_ERROR_SYSTEM);
  }
  driver().end_export(block);
  driver().free_shared(0, block);
}

}  // namespace
