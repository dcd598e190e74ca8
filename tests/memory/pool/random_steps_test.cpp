// 10,000 random allocations, frees and resizes through the C ABI. A model checks the value of every byte and
// that blocks do not overlap.
#include <gtest/gtest.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace {

constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};

class random_steps : public testing::TestWithParam<unsigned> {
 protected:
  struct block {
    std::uint64_t bytes;
    unsigned char value;
  };

  // Mostly small, some close to the slab size of 2 MiB, a few above the limit of the pool.
  std::uint64_t random_bytes() {
    const unsigned kind = number(0, 99);
    if (kind < 70) return number(1, 5000);
    if (kind < 95) return number(5000, 300000);
    if (kind < 99) return (2U << 20U) - 3 + number(0, 6);
    return (64U << 20U) + number(0, 4096);
  }
  unsigned number(unsigned low, unsigned high) {
    return std::uniform_int_distribution<unsigned>(low, high)(m_engine);
  }

  void add(void* pointer, std::uint64_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    ASSERT_NE(pointer, nullptr);
    ASSERT_EQ(begin % 256, 0U);
    const auto next_block = m_model.lower_bound(begin);
    if (next_block != m_model.end()) {
      ASSERT_GE(next_block->first, begin + bytes) << "overlaps the next block";
    }
    if (next_block != m_model.begin()) {
      ASSERT_LE(std::prev(next_block)->first + std::prev(next_block)->second.bytes, begin);
    }
    const auto value = static_cast<unsigned char>(number(1, 255));
    m_model[begin] = {bytes, value};
    // All bytes of small blocks, but only both ends and the middle of large ones, to touch few pages.
    auto* data = static_cast<unsigned char*>(pointer);
    for_checked_offsets(bytes, [&](std::uint64_t offset) { data[offset] = value; });
  }

  template <typename Function>
  static void for_checked_offsets(std::uint64_t bytes, Function&& function) {
    const std::uint64_t step = bytes <= 8192 ? 1 : 4096;
    for (std::uint64_t offset = 0; offset < bytes; offset += step) function(offset);
    function(bytes - 1);
  }

  static void check(std::uintptr_t begin, const block& known, std::uint64_t bytes) {
    const auto* data = reinterpret_cast<const unsigned char*>(begin);
    for_checked_offsets(known.bytes, [&](std::uint64_t offset) {
      if (offset >= bytes) return;
      ASSERT_EQ(data[offset], known.value) << "byte " << offset << " of " << known.bytes;
    });
  }

  std::map<std::uintptr_t, block>::iterator pick() {
    return std::next(m_model.begin(), number(0, static_cast<unsigned>(m_model.size() - 1)));
  }

  void allocate() {
    const std::uint64_t bytes = random_bytes();
    isthmus_memory_options options{};
    options.struct_bytes = sizeof options;
    options.unpooled = number(0, 19) == 0 ? 1 : 0;
    options.growable = number(0, 19) == 0 ? 1 : 0;
    void* pointer = nullptr;
    ASSERT_EQ(isthmus_memory_allocate_device(host, bytes, &options, &pointer), ISTHMUS_SUCCESS);
    add(pointer, bytes);
  }

  void free_one() {
    const auto selected = pick();
    check(selected->first, selected->second, selected->second.bytes);
    ASSERT_EQ(isthmus_memory_free_device(host, reinterpret_cast<void*>(selected->first)), ISTHMUS_SUCCESS);
    m_model.erase(selected);
  }

  void resize_one() {
    const auto selected = pick();
    const block freed_block = selected->second;
    const std::uint64_t bytes = random_bytes();
    void* pointer = reinterpret_cast<void*>(selected->first);
    ASSERT_EQ(isthmus_memory_resize_device(host, &pointer, bytes), ISTHMUS_SUCCESS);
    m_model.erase(selected);
    check(reinterpret_cast<std::uintptr_t>(pointer), freed_block, bytes);
    add(pointer, bytes);
  }

  void query_one() {
    const auto [begin, known] = *pick();
    isthmus_memory_info info{};
    ASSERT_EQ(isthmus_memory_query(reinterpret_cast<void*>(begin + known.bytes - 1), &info), ISTHMUS_SUCCESS);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(info.begin), begin);
    ASSERT_EQ(info.bytes, known.bytes);
    ASSERT_EQ(info.device.platform, ISTHMUS_PLATFORM_HOST);
  }

  std::mt19937 m_engine{GetParam()};
  std::map<std::uintptr_t, block> m_model;
};

TEST_P(random_steps, match_the_model) {
  for (int step = 0; step < 10000 && !HasFatalFailure(); ++step) {
    const unsigned kind = number(0, 99);
    if (m_model.empty() || (kind < 45 && m_model.size() < 300)) {
      allocate();
    } else if (kind < 75 || m_model.size() >= 300) {
      free_one();
    } else if (kind < 90) {
      resize_one();
    } else {
      query_one();
    }
    ASSERT_EQ(isthmus_memory_live_blocks(), m_model.size());
  }
  while (!m_model.empty() && !HasFatalFailure()) free_one();
  ASSERT_EQ(isthmus_memory_trim(host), ISTHMUS_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(seeds, random_steps, testing::Values(1U, 20261121U));

}  // namespace
