// Tests the Level Zero device driver with the real loader, its validation layer and a stand-in driver on host
// memory: which native calls are made, with which arguments, and in which order they take effect.
#include <gmock/gmock.h>
#include <isthmus/memory.h>
#include <level_zero/ze_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "device/level_zero/control.hpp"
#include "device/level_zero/level_zero_driver.hpp"
#include "memory/pool/device_memory.hpp"

namespace isthmus {
namespace {

using standin_control::calls;
using testing::HasSubstr;

constexpr isthmus_device first{ISTHMUS_PLATFORM_LEVEL_ZERO, 0};

class level_zero : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    m_driver = device_driver::get(ISTHMUS_PLATFORM_LEVEL_ZERO, reason);
    ASSERT_NE(m_driver, nullptr) << reason;
    m_live = standin_control::live();
  }
  void TearDown() override {
    standin_control::set_peers(true);
    standin_control::hold(false);
    EXPECT_EQ(standin_control::live(), m_live) << "native objects were leaked";
  }

  level_zero_driver& native() { return static_cast<level_zero_driver&>(*m_driver); }

  template <typename Call>
  static std::string error_of(isthmus_status status, Call&& call) {
    try {
      call();
    } catch (const error& failure) {
      EXPECT_EQ(failure.info().status, status) << failure.what();
      return failure.what();
    }
    return "no error";
  }

  device_driver* m_driver = nullptr;
  int m_live = 0;
};

// A stream that is destroyed with its scope.
struct stream {
  stream(device_driver& owner, int ordinal, stream_priority priority = stream_priority::normal)
      : driver(owner), device(ordinal), native(owner.create_stream(ordinal, priority)) {}
  ~stream() { driver.destroy_stream(device, native); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  void synchronize() { driver.synchronize(device, native); }
  device_driver& driver;
  int device;
  native_stream native;
};

TEST_F(level_zero, validation_layer_is_enabled) {
  // The layer rejects invalid calls, so they must not reach the driver.
  void* loader = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(loader, nullptr);
  const auto free = reinterpret_cast<decltype(&zeMemFree)>(dlsym(loader, "zeMemFree"));
  const std::uint64_t initial_calls = calls("zeMemFree");
  auto* const context = static_cast<ze_context_handle_t>(native().native_context(0));
  EXPECT_EQ(free(context, nullptr), ZE_RESULT_ERROR_INVALID_NULL_POINTER);
  EXPECT_EQ(calls("zeMemFree"), initial_calls);
  dlclose(loader);
}

TEST_F(level_zero, devices_are_the_gpus) {
  EXPECT_EQ(m_driver->device_count(), 2);
  EXPECT_EQ(m_driver->name(0), "stand-in 1");
  EXPECT_EQ(m_driver->bus_id(1), "0000:3c:00.0");
  EXPECT_EQ(m_driver->version(), "Level Zero 1.14, driver 17731720");
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { m_driver->name(2); }),
              HasSubstr("Level Zero device 2 does not exist; there are 2"));
}

TEST_F(level_zero, memory_belongs_to_its_device) {
  void* block = m_driver->allocate(1, 1000);
  EXPECT_EQ(m_driver->owner_of(block), 1);
  EXPECT_EQ(m_driver->owner_of(static_cast<char*>(block) + 999), 1);
  int local = 0;
  EXPECT_EQ(m_driver->owner_of(&local), -1);
  void* pinned = m_driver->allocate_host(100);
  EXPECT_EQ(m_driver->owner_of(pinned), -1);
  m_driver->free_host(pinned);
  m_driver->free(1, block);
  EXPECT_EQ(m_driver->owner_of(block), -1);
}

TEST_F(level_zero, large_blocks_request_relaxed_limits) {
  void* usual = m_driver->allocate(0, standin_max_block_bytes);
  void* large = m_driver->allocate(0, standin_max_block_bytes + 1);
  m_driver->free(0, usual);
  m_driver->free(0, large);
}

TEST_F(level_zero, out_of_memory_differs_from_other_failures) {
  const std::string message =
      error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] { m_driver->allocate(0, standin_memory_bytes + 1); });
  EXPECT_THAT(message, HasSubstr("zeMemAllocDevice of " + std::to_string(standin_memory_bytes + 1) +
                                 " bytes on level_zero:0 failed: out of device memory"));
  int foreign = 0;
  try {
    m_driver->free(0, &foreign);
    FAIL() << "a foreign pointer was freed";
  } catch (const error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_BACKEND);
    EXPECT_EQ(failure.info().native_code, ZE_RESULT_ERROR_INVALID_ARGUMENT);
  }
}

TEST_F(level_zero, streams_are_command_lists_of_the_copy_engine) {
  const std::uint64_t copy = calls("copy engine"), compute = calls("compute engine"),
                      high = calls("high priority");
  {
    const stream normal(*m_driver, 0);
  }
  {
    const stream urgent(*m_driver, 1, stream_priority::high);
  }
  EXPECT_EQ(calls("copy engine"), copy + 2);
  EXPECT_EQ(calls("compute engine"), compute);
  EXPECT_EQ(calls("high priority"), high + 1);
}

TEST_F(level_zero, work_on_one_stream_is_ordered) {
  auto* data = static_cast<unsigned char*>(m_driver->allocate(0, 4096));
  stream work(*m_driver, 0);
  // Each step depends on the previous one. The stand-in runs commands between two barriers in reverse.
  m_driver->fill(0, data, 1, 4096, work.native);
  m_driver->fill(0, data, 2, 1024, work.native);
  const device_copy up{data + 1024, data, 1024};
  m_driver->copy(0, {&up, 1}, work.native);
  m_driver->fill(0, data, 3, 512, work.native);
  const std::array<device_copy, 3> several{device_copy{data + 2048, data + 256, 512},
                                           device_copy{nullptr, nullptr, 0},
                                           device_copy{data + 3001, data + 1501, 333}};
  m_driver->copy(0, several, work.native);
  work.synchronize();
  std::vector<unsigned char> expected(4096, 1);
  std::fill_n(expected.begin(), 512, 3);
  std::fill_n(expected.begin() + 512, 1536, 2);
  std::fill_n(expected.begin() + 2048, 256, 3);
  std::fill_n(expected.begin() + 2304, 256, 2);
  std::fill_n(expected.begin() + 3001, 333, 2);
  EXPECT_EQ(std::vector<unsigned char>(data, data + 4096), expected);
  m_driver->free(0, data);
}

TEST_F(level_zero, empty_work_appends_no_commands) {
  stream work(*m_driver, 0);
  const std::uint64_t initial_calls = calls("zeCommandListAppendBarrier");
  const device_copy empty{nullptr, nullptr, 0};
  m_driver->copy(0, {&empty, 1}, work.native);
  m_driver->copy(0, {}, work.native);
  m_driver->fill(0, nullptr, 0, 0, work.native);
  EXPECT_EQ(calls("zeCommandListAppendBarrier"), initial_calls);
}

TEST_F(level_zero, events_order_streams_across_devices) {
  auto* data = static_cast<unsigned char*>(m_driver->allocate(0, 1 << 16));
  stream producer(*m_driver, 0), consumer(*m_driver, 1);
  native_event ready = m_driver->create_event(0);
  EXPECT_TRUE(m_driver->is_done(ready)) << "never recorded";
  for (unsigned char round = 1; round <= 200; ++round) {  // more rounds than an event has native events
    standin_control::hold(true);
    m_driver->fill(0, data, round, 256, producer.native);
    m_driver->record(0, ready, producer.native);
    EXPECT_FALSE(m_driver->is_done(ready));
    // The consumer's list may run first; without the wait it would copy the data of the previous round.
    m_driver->wait(1, consumer.native, ready);
    const device_copy take{data + 256L * (round % 100 + 1), data, 256};
    m_driver->copy(1, {&take, 1}, consumer.native);
    standin_control::hold(false);
    consumer.synchronize();
    EXPECT_TRUE(m_driver->is_done(ready));
    ASSERT_EQ(data[256 * (round % 100 + 1) + 255], round);
  }
  m_driver->destroy_event(ready);
  m_driver->free(0, data);
}

TEST_F(level_zero, too_many_records_are_an_error) {
  stream work(*m_driver, 0);
  native_event event = m_driver->create_event(0);
  standin_control::hold(true);
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_USAGE,
                       [&] {
                         for (int i = 0; i < 65; ++i) m_driver->record(0, event, work.native);
                       }),
              HasSubstr("recorded 64 times before the first record completed"));
  standin_control::hold(false);
  work.synchronize();
  m_driver->destroy_event(event);
}

TEST_F(level_zero, words_are_written_after_earlier_work) {
  auto* words = static_cast<std::uint32_t*>(m_driver->allocate(0, 64));
  stream work(*m_driver, 0);
  m_driver->fill(0, words, 0xee, 64, work.native);
  m_driver->write_word(0, words + 3, 0x12345678, work.native);
  work.synchronize();
  EXPECT_EQ(words[2], 0xeeeeeeeeU);
  EXPECT_EQ(words[3], 0x12345678U);
  EXPECT_EQ(words[4], 0xeeeeeeeeU);
  m_driver->free(0, words);
}

TEST_F(level_zero, unsupported_functions_report_errors) {
  stream work(*m_driver, 0);
  std::uint32_t word = 0;
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { m_driver->wait_word(0, &word, 1, work.native); }),
              HasSubstr("stream cannot wait for a word of memory"));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { m_driver->memory_info(0); }), HasSubstr("free memory"));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED,
                       [&] { m_driver->allocate_shared(0, 10, sharing_method::descriptor); }),
              HasSubstr("shared by interprocess handles"));
  EXPECT_FALSE(m_driver->is_capturing(0, work.native));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { m_driver->synchronize(0, nullptr); }),
              HasSubstr("no default stream"));
}

TEST_F(level_zero, peer_access_is_queried) {
  void* block = m_driver->allocate_shared(0, 1000);
  m_driver->allow_access(block, 1);
  standin_control::set_peers(false);
  const std::uint64_t resident = calls("zeContextMakeMemoryResident");
  EXPECT_FALSE(m_driver->can_access_peer(0, 1));
  EXPECT_TRUE(m_driver->can_access_peer(1, 1));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { m_driver->enable_peer(0, 1); }),
              HasSubstr("device 0 cannot access device 1"));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { m_driver->allow_access(block, 1); }),
              HasSubstr("device 1 cannot access device 0"));
  EXPECT_EQ(calls("zeContextMakeMemoryResident"), resident);
  m_driver->free_shared(0, block);
}

TEST_F(level_zero, shared_blocks_are_zero_and_freed_once) {
  auto* data = static_cast<unsigned char*>(m_driver->allocate_shared(1, 100));
  for (std::uint64_t i = 0; i < m_driver->granularity(1); ++i) ASSERT_EQ(data[i], 0);
  error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { m_driver->free_shared(0, data); });
  m_driver->free_shared(1, data);
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { m_driver->free_shared(1, data); }),
              HasSubstr("is not a shared block of level_zero:1"));
}

TEST_F(level_zero, handle_can_be_mapped_in_the_same_process) {
  auto* data = static_cast<unsigned char*>(m_driver->allocate_shared(0, 1000));
  auto* again = static_cast<unsigned char*>(m_driver->import_shared(1, m_driver->export_shared(data)));
  EXPECT_NE(again, data);
  again[999] = 42;
  EXPECT_EQ(data[999], 42);
  m_driver->release_import(1, again);
  m_driver->end_export(data);
  m_driver->free_shared(0, data);
}

TEST_F(level_zero, handle_can_be_mapped_in_another_process) {
  constexpr unsigned bytes = 5000;
  auto* data = static_cast<unsigned char*>(m_driver->allocate_shared(0, bytes));
  for (unsigned i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i % 251);
  std::string hex;
  for (const std::byte value : m_driver->export_shared(data).bytes)
    hex += fmt::format("{:02x}", static_cast<unsigned>(value));
  EXPECT_EQ(std::system((std::string(LEVEL_ZERO_PEER) + " " + hex + " " + std::to_string(bytes)).c_str()), 0);
  for (unsigned i = 0; i < bytes; ++i) ASSERT_EQ(data[i], i % 251 + 1);
  m_driver->free_shared(0, data);
}

// ---- plain memory from UMF's provider and from the driver -----------------------------------------------

class level_zero_memory : public level_zero, public testing::WithParamInterface<const char*> {
 protected:
  device_memory m_memory{
      first, {{GetParam()}, "the test", true, 1 << 20, 8 << 20}, make_source_opener(first, nullptr)};
};

TEST_P(level_zero_memory, blocks_come_from_the_driver) {
  m_memory.free(m_memory.allocate(1000, true));  // UMF allocates a block for itself at its first use
  const std::uint64_t initial_calls = calls("zeMemAllocDevice");
  void* small = m_memory.allocate(1000, false);
  void* large = m_memory.allocate(standin_max_block_bytes + 1000, false);
  EXPECT_EQ(calls("zeMemAllocDevice"), initial_calls + 2);
  EXPECT_EQ(m_driver->owner_of(small), 0);
  EXPECT_EQ(m_driver->owner_of(large), 0);
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(m_memory.allocate(1000, false));
  EXPECT_EQ(calls("zeMemAllocDevice"), initial_calls + 2) << "pooled blocks must reuse memory of the pool";
  for (void* block : blocks) m_memory.free(block);
  m_memory.free(small);
  m_memory.free(large);
  m_memory.trim();
}

TEST_P(level_zero_memory, out_of_memory_has_the_native_code) {
  try {
    m_memory.allocate(standin_memory_bytes + 1, false);
    FAIL() << "allocated more than the device has";
  } catch (const error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(failure.info().native_code, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  }
}

TEST_P(level_zero_memory, resize_copies_on_the_device) {
  void* block = m_memory.allocate(5000, false);
  std::iota(static_cast<unsigned char*>(block), static_cast<unsigned char*>(block) + 5000, std::uint8_t{0});
  const std::uint64_t initial_calls = calls("zeCommandListAppendMemoryCopy");
  block = m_memory.resize(first, block, 2 << 20);
  EXPECT_EQ(calls("zeCommandListAppendMemoryCopy"), initial_calls + 1);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(static_cast<unsigned char*>(block)[i], i % 256);
  m_memory.free(block);
  m_memory.trim();
}

INSTANTIATE_TEST_SUITE_P(providers, level_zero_memory, testing::Values("umf", "direct"));

TEST_F(level_zero, application_context_is_used) {
  void* loader = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto driver_get = reinterpret_cast<decltype(&zeDriverGet)>(dlsym(loader, "zeDriverGet"));
  const auto create = reinterpret_cast<decltype(&zeContextCreate)>(dlsym(loader, "zeContextCreate"));
  const auto properties =
      reinterpret_cast<decltype(&zeMemGetAllocProperties)>(dlsym(loader, "zeMemGetAllocProperties"));
  std::uint32_t count = 1;
  ze_driver_handle_t driver = nullptr;
  ASSERT_EQ(driver_get(&count, &driver), ZE_RESULT_SUCCESS);
  const ze_context_desc_t description{ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
  ze_context_handle_t context = nullptr;
  ASSERT_EQ(create(driver, &description, &context), ZE_RESULT_SUCCESS);
  isthmus_memory_options options{
      .struct_bytes = sizeof options, .unpooled = 1, .growable = 0, .native_context = context};
  void* block = nullptr;
  ASSERT_EQ(isthmus_memory_allocate_device(first, 100, &options, &block), ISTHMUS_SUCCESS);
  ze_memory_allocation_properties_t properties_found{
      ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES, nullptr, {}, 0, 0};
  ASSERT_EQ(properties(context, block, &properties_found, nullptr), ZE_RESULT_SUCCESS);
  EXPECT_EQ(properties_found.type, ZE_MEMORY_TYPE_DEVICE);
  EXPECT_EQ(m_driver->owner_of(block), -1) << "the block was allocated in Isthmus' context";
  // The free function must find the context from which the block was allocated.
  EXPECT_EQ(isthmus_memory_free_device(first, block), ISTHMUS_SUCCESS);
  dlclose(loader);
}

}  // namespace
}  // namespace isthmus
