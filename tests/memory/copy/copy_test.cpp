// Copies between stand-in devices: both directions, all alignments, ordering, and rejected calls.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/driver.hpp"
#include "standins/standin.h"

namespace {

using isthmus::device_driver;
using isthmus::stream_priority;

bool is_hip() { return std::string(std::getenv("TEST_PLATFORM")) == "hip"; }
isthmus_platform platform() { return is_hip() ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA; }
isthmus_device device(int ordinal) { return {platform(), ordinal}; }
constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};

device_driver& driver() {
  std::string reason;
  device_driver* const found = device_driver::get(platform(), reason);
  if (found == nullptr) throw std::runtime_error(reason);
  return *found;
}

isthmus_error_info last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info;
}

class block {
 public:
  block(int device, std::uint64_t bytes)
      : m_device(device), m_data(static_cast<unsigned char*>(driver().allocate(device, bytes))) {}
  ~block() { driver().free(m_device, m_data); }
  block(const block&) = delete;
  block& operator=(const block&) = delete;
  unsigned char* data() const { return m_data; }  // stand-in devices use host memory

 private:
  int m_device;
  unsigned char* m_data;
};

struct scoped_stream {
  explicit scoped_stream(int device)
      : device(device), stream(driver().create_stream(device, stream_priority::normal)) {}
  ~scoped_stream() { driver().destroy_stream(device, stream); }
  void finish() const { driver().synchronize(device, stream); }
  int device;
  isthmus::native_stream stream;
};

isthmus_copy_options options(isthmus_copy_path path, bool push = false) {
  isthmus_copy_options options_used{};
  options_used.struct_bytes = sizeof options_used;
  options_used.path = path;
  options_used.push = push ? 1 : 0;
  return options_used;
}

void fill_randomly(unsigned char* to, std::uint64_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::generate_n(to, bytes, [&] { return static_cast<unsigned char>(random()); });
}

struct copy_case {
  isthmus_copy_path path;
  bool push;
  int from, to;
};

class all_copy_cases : public testing::TestWithParam<copy_case> {};

TEST_P(all_copy_cases, every_size_and_alignment) {
  const copy_case test_case = GetParam();
  const scoped_stream test_stream(test_case.push ? test_case.from : test_case.to);
  const auto options_used = options(test_case.path, test_case.push);
  for (const std::uint64_t bytes : {0ul, 1ul, 4095ul, 300001ul, (1ul << 20) + 3, (21ul << 20) + 7}) {
    const block from(test_case.from, bytes + 64), to(test_case.to, bytes + 64);
    for (const std::uint64_t offset : {0ul, 1ul, 13ul}) {
      fill_randomly(from.data(), bytes + 64, static_cast<unsigned>(bytes + offset));
      std::fill(to.data(), to.data() + bytes + 64, 0xcd);
      ASSERT_EQ(isthmus_memory_copy(to.data() + 5, device(test_case.to), from.data() + offset,
                                    device(test_case.from), bytes, &options_used, test_stream.stream),
                ISTHMUS_SUCCESS)
          << last_error().message;
      test_stream.finish();
      ASSERT_EQ(std::memcmp(to.data() + 5, from.data() + offset, bytes), 0) << bytes << " at " << offset;
      ASSERT_EQ(std::count(to.data(), to.data() + 5, 0xcd), 5) << "bytes before";
      ASSERT_EQ(std::count(to.data() + 5 + bytes, to.data() + bytes + 64, 0xcd), 59) << "bytes after";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    copy, all_copy_cases,
    testing::Values(copy_case{ISTHMUS_COPY_AUTO, false, 0, 1}, copy_case{ISTHMUS_COPY_DIRECT, true, 0, 1},
                    copy_case{ISTHMUS_COPY_STAGED, false, 0, 1}, copy_case{ISTHMUS_COPY_STAGED, true, 2, 1},
                    copy_case{ISTHMUS_COPY_AUTO, false, 3, 3}, copy_case{ISTHMUS_COPY_STAGED, false, 3, 3}));

TEST(copy_test, devices_without_peer_access_are_staged) {
  standin_connect(4, 5, 0);
  const block from(5, 1 << 20), to(4, 1 << 20);
  const scoped_stream test_stream(4);
  const auto direct = options(ISTHMUS_COPY_DIRECT);
  EXPECT_EQ(isthmus_memory_copy(to.data(), device(4), from.data(), device(5), 64, &direct, test_stream.stream),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().hint).find("AUTO"), std::string::npos);
  const scoped_stream other_stream(5);
  EXPECT_EQ(isthmus_memory_copy(from.data(), device(5), to.data(), device(4), 64, &direct, other_stream.stream),
            ISTHMUS_SUCCESS);
  other_stream.finish();
  fill_randomly(from.data(), 1 << 20, 9);
  ASSERT_EQ(
      isthmus_memory_copy(to.data(), device(4), from.data(), device(5), 1 << 20, nullptr, test_stream.stream),
      ISTHMUS_SUCCESS)
      << last_error().message;
  test_stream.finish();
  EXPECT_EQ(std::memcmp(to.data(), from.data(), 1 << 20), 0);
  standin_connect(4, 5, 1);
}

// A blocked stream delays the copy but not the caller, and the copy delays the work that follows.
TEST(copy_test, copies_are_ordered_by_the_stream) {
  const block from(0, 3 << 20), to(1, 3 << 20);
  const scoped_stream test_stream(1);
  auto* const word = static_cast<std::uint32_t*>(driver().allocate_host(64));
  const auto awaited_event = driver().create_event(1), done = driver().create_event(1);
  for (const auto path : {ISTHMUS_COPY_DIRECT, ISTHMUS_COPY_STAGED}) {
    std::atomic_ref(*word).store(0);
    std::fill(from.data(), from.data() + (3 << 20), 1);
    std::fill(to.data(), to.data() + (3 << 20), 0);
    const scoped_stream other(1);
    driver().wait_word(1, word, 1, other.stream);
    driver().record(1, awaited_event, other.stream);
    auto options_used = options(path);
    options_used.wait_events = &awaited_event;
    options_used.wait_count = 1;
    options_used.done_event = done;
    ASSERT_EQ(isthmus_memory_copy(to.data(), device(1), from.data(), device(0), 3 << 20, &options_used,
                                  test_stream.stream),
              ISTHMUS_SUCCESS);
    driver().fill(1, to.data(), 7, 10, test_stream.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(driver().is_done(done));
    std::fill(from.data(), from.data() + (3 << 20), 2);  // before the copy is allowed to read it
    std::atomic_ref(*word).store(1);
    test_stream.finish();
    EXPECT_TRUE(driver().is_done(done));
    EXPECT_EQ(std::count(to.data(), to.data() + (3 << 20), 2), (3 << 20) - 10);
    EXPECT_EQ(std::count(to.data(), to.data() + 10, 7), 10);
  }
  driver().destroy_event(awaited_event);
  driver().destroy_event(done);
  driver().free_host(word);
}

TEST(copy_test, threads_share_a_lane) {
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      const std::uint64_t bytes = (2u << 20) + i;
      const block from(0, bytes), to(1, bytes);
      const scoped_stream test_stream(1);
      const auto options_used = options(ISTHMUS_COPY_STAGED);
      for (unsigned round = 0; round < 5; ++round) {
        fill_randomly(from.data(), bytes, 100 * i + round);
        EXPECT_EQ(isthmus_memory_copy(to.data(), device(1), from.data(), device(0), bytes, &options_used,
                                      test_stream.stream),
                  ISTHMUS_SUCCESS);
        test_stream.finish();
        EXPECT_EQ(std::memcmp(to.data(), from.data(), bytes), 0);
      }
    });
}

TEST(copy_test, copies_between_host_and_device) {
  const scoped_stream test_stream(2);
  const block remote(2, 5000);
  std::vector<unsigned char> sent(5000), received(5000, 0);
  fill_randomly(sent.data(), sent.size(), 4);
  ASSERT_EQ(isthmus_memory_copy(remote.data(), device(2), sent.data(), host, 5000, nullptr, test_stream.stream),
            ISTHMUS_SUCCESS);
  ASSERT_EQ(
      isthmus_memory_copy(received.data(), host, remote.data(), device(2), 5000, nullptr, test_stream.stream),
      ISTHMUS_SUCCESS);
  test_stream.finish();
  EXPECT_EQ(received, sent);
  std::vector<unsigned char> third(5000, 0);
  ASSERT_EQ(isthmus_memory_copy(third.data(), host, sent.data(), host, 5000, nullptr, nullptr),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(third, sent);
}

TEST(copy_test, invalid_calls_are_rejected) {
  const scoped_stream test_stream(1);
  const block first(1, 4096), second(0, 4096);
  const auto expect_rejected = [&](isthmus_status expected, const char* expected_text, void* to,
                                   isthmus_device destination_device, const void* from,
                                   isthmus_device source_device, std::uint64_t bytes,
                                   const isthmus_copy_options* options_used) {
    EXPECT_EQ(isthmus_memory_copy(to, destination_device, from, source_device, bytes, options_used,
                                  test_stream.stream),
              expected)
        << expected_text;
    EXPECT_NE(std::string(last_error().message).find(expected_text), std::string::npos) << last_error().message;
  };
  const auto d0 = device(0), d1 = device(1);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "overlap in 96 of 100", first.data(), d1, first.data() + 4,
                  d1, 100, nullptr);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "overlap in 96 of 100", first.data() + 4, d1, first.data(),
                  d1, 100, nullptr);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "source is NULL", first.data(), d1, nullptr, d0, 4, nullptr);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "address space", first.data(), d1, second.data(), d0,
                  ~std::uint64_t{0}, nullptr);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "destination_device.ordinal = 99", first.data(), device(99),
                  second.data(), d0, 4, nullptr);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "source_device.platform", first.data(), d1, second.data(),
                  {static_cast<isthmus_platform>(77), 0}, 4, nullptr);
  expect_rejected(ISTHMUS_ERROR_UNSUPPORTED, "between platforms", first.data(), d1, second.data(),
                  {ISTHMUS_PLATFORM_LEVEL_ZERO, 0}, 4, nullptr);
  auto wrong = options(ISTHMUS_COPY_AUTO);
  wrong.struct_bytes = 3;
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "struct_bytes = 3", first.data(), d1, second.data(), d0, 4,
                  &wrong);
  wrong = options(static_cast<isthmus_copy_path>(9));
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "path = 9", first.data(), d1, second.data(), d0, 4, &wrong);
  wrong = options(ISTHMUS_COPY_STAGED);
  expect_rejected(ISTHMUS_ERROR_UNSUPPORTED, "is on the host", first.data(), d1, second.data(), host, 4,
                  &wrong);
  standin_set_capturing(test_stream.stream, 1);
  expect_rejected(ISTHMUS_ERROR_UNSUPPORTED, "captured", first.data(), d1, second.data(), d0, 4, &wrong);
  EXPECT_EQ(isthmus_memory_copy(first.data(), d1, second.data(), d0, 4, nullptr, test_stream.stream),
            ISTHMUS_SUCCESS);
  standin_set_capturing(test_stream.stream, 0);
  std::vector<unsigned char> local(8);
  expect_rejected(ISTHMUS_ERROR_INVALID_ARGUMENT, "both buffers are on the host", local.data(), host,
                  local.data() + 4, host, 4, nullptr);
  EXPECT_EQ(isthmus_memory_copy(first.data(), d1, first.data(), d1, 4096, nullptr, test_stream.stream),
            ISTHMUS_SUCCESS)
      << "an identical range is unchanged";
  EXPECT_EQ(isthmus_memory_copy(nullptr, d1, nullptr, d0, 0, nullptr, test_stream.stream), ISTHMUS_SUCCESS);
  test_stream.finish();
}

TEST(stream_test, reports_whether_a_stream_is_captured) {
  const scoped_stream first(0), other(0);
  const auto captured = [](isthmus_device device, isthmus_stream stream) {
    int found = -1;
    EXPECT_EQ(isthmus_stream_is_capturing(device, stream, &found), ISTHMUS_SUCCESS) << last_error().message;
    return found;
  };
  EXPECT_EQ(captured(device(0), first.stream), 0);
  standin_set_capturing(first.stream, 1);
  EXPECT_EQ(captured(device(0), first.stream), 1);
  EXPECT_EQ(captured(device(0), other.stream), 0);
  EXPECT_EQ(captured(device(0), nullptr), 0);
  EXPECT_EQ(captured(device(0), reinterpret_cast<isthmus_stream>(std::uintptr_t{1})), 0)
      << "another handle of the default stream";
  EXPECT_EQ(captured(host, first.stream), 0);
  standin_set_capturing(first.stream, 0);
  EXPECT_EQ(captured(device(0), first.stream), 0);

  EXPECT_EQ(isthmus_stream_is_capturing(device(0), first.stream, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(last_error().message).find("capturing"), std::string::npos);
  int is_capturing = 7;
  EXPECT_EQ(isthmus_stream_is_capturing({ISTHMUS_PLATFORM_LEVEL_ZERO, 0}, first.stream, &is_capturing),
            ISTHMUS_ERROR_UNSUPPORTED);
}

}  // namespace
