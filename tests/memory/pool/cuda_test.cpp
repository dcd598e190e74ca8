// Providers on a real CUDA device, if there is one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "device/driver.hpp"
#include "memory/pool/device_memory.hpp"
#include "memory/pool/standin_source.hpp"

namespace isthmus {
namespace {

constexpr isthmus_device device{ISTHMUS_PLATFORM_CUDA, 0};
constexpr std::uint64_t mebi = std::uint64_t{1} << 20U;

class cuda_memory : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string reason;
    m_driver = device_driver::get(ISTHMUS_PLATFORM_CUDA, reason);
    if (m_driver == nullptr) GTEST_SKIP() << reason;
    m_memory = std::make_unique<device_memory>(
        device, selection::memory_settings{{GetParam()}, "the test", true, 64 * mebi, 256 * mebi},
        make_source_opener(device, nullptr));
  }

  // Copies whole blocks to and from the device with the driver.
  void move(void* to, const void* from, std::uint64_t bytes) {
    const native_stream stream = m_driver->create_stream(0, stream_priority::normal);
    const device_copy one{to, from, bytes};
    m_driver->copy(0, {&one, 1}, stream);
    m_driver->synchronize(0, stream);
    m_driver->destroy_stream(0, stream);
  }
  void write(void* to, unsigned char value, std::uint64_t bytes) {
    const std::vector<unsigned char> source(bytes, value);
    move(to, source.data(), bytes);
  }
  std::vector<unsigned char> read(const void* from, std::uint64_t bytes) {
    std::vector<unsigned char> target(bytes, 0x5a);
    move(target.data(), from, bytes);
    return target;
  }

  device_driver* m_driver = nullptr;
  std::unique_ptr<device_memory> m_memory;
};

TEST_P(cuda_memory, blocks_are_disjoint_and_on_the_device) {
  std::vector<std::pair<void*, std::uint64_t>> blocks;
  for (std::uint64_t i = 1; i <= 60; ++i) {
    const std::uint64_t bytes = i * i * 997;  // up to 3.6 MB: in shared slabs and in separate slabs
    blocks.emplace_back(m_memory->allocate(bytes, i % 20 == 0), bytes);
    EXPECT_EQ(m_driver->owner_of(blocks.back().first), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().first) % 256, 0U);
    write(blocks.back().first, static_cast<unsigned char>(i), bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(read(blocks[i].first, blocks[i].second),
              std::vector<unsigned char>(blocks[i].second, static_cast<unsigned char>(i + 1)));
    m_memory->free(blocks[i].first);
  }
}

TEST_P(cuda_memory, resize_preserves_contents) {
  void* block = m_memory->allocate(3 * mebi, false);
  write(block, 9, 3 * mebi);
  block = m_memory->resize(device, block, 70 * mebi);
  EXPECT_EQ(read(block, 3 * mebi), std::vector<unsigned char>(3 * mebi, 9));
  m_memory->free(block);
}

TEST_P(cuda_memory, pool_keeps_a_sixteenth_of_memory_by_default) {
  const selection::memory_settings default_settings{{GetParam()}, "the test", true, 64 * mebi, std::nullopt};
  device_memory memory(device, default_settings, make_source_opener(device, nullptr));
  const std::uint64_t sixteenth = m_driver->memory_info(0).total_bytes / 16;
  EXPECT_EQ(memory.explain()["providers"][0]["pool"]["keep_bytes"], std::max(sixteenth, 1024 * mebi));
  EXPECT_EQ(m_memory->explain()["providers"][0]["pool"]["keep_bytes"], 256 * mebi);
}

TEST_P(cuda_memory, pool_is_usable_after_out_of_memory) {
  const std::uint64_t total = m_driver->memory_info(0).total_bytes;
  void* small = m_memory->allocate(1000, false);
  write(small, 3, 1000);
  EXPECT_THAT(error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] { m_memory->allocate(total + mebi, false); }),
              testing::HasSubstr(GetParam()));
  void* more = m_memory->allocate(1000, false);
  write(more, 4, 1000);
  EXPECT_EQ(read(small, 1000), std::vector<unsigned char>(1000, 3));
  m_memory->free(small);
  m_memory->free(more);
}

INSTANTIATE_TEST_SUITE_P(providers, cuda_memory, testing::Values("umf", "direct"));

}  // namespace
}  // namespace isthmus
