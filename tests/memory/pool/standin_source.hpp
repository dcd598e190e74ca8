// Memory source for tests: host memory with a limit. It counts allocations and checks frees.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "memory/pool/device_memory.hpp"
#include "memory/pool/memory_source.hpp"

namespace isthmus {

// Statistics of a source, for inspection by tests. The source itself is owned by device_memory.
struct source_statistics {
  std::mutex mutex;
  std::uint64_t limit_bytes = UINT64_MAX;
  std::uint64_t live_bytes = 0;
  int allocations = 0, frees = 0;
  isthmus_status failure = ISTHMUS_ERROR_OUT_OF_MEMORY;  // status if the limit is exceeded
  std::map<void*, std::uint64_t> blocks;
};

class standin_source final : public memory_source {
 public:
  explicit standin_source(source_statistics& statistics) : m_statistics(statistics) {}

  void* allocate(std::uint64_t bytes) override {
    const std::lock_guard lock(m_statistics.mutex);
    if (bytes > m_statistics.limit_bytes - m_statistics.live_bytes)
      throw make_error(m_statistics.failure, ISTHMUS_HERE, "the test's limit is reached", "", 77);
    void* pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    m_statistics.blocks[pointer] = bytes;
    m_statistics.live_bytes += bytes;
    ++m_statistics.allocations;
    return pointer;
  }

  void free(void* pointer, std::uint64_t bytes) override {
    const std::lock_guard lock(m_statistics.mutex);
    const auto position = m_statistics.blocks.find(pointer);
    ASSERT_TRUE(position != m_statistics.blocks.end()) << "an unknown pointer was freed";
    EXPECT_EQ(position->second, bytes);
    m_statistics.live_bytes -= bytes;
    ++m_statistics.frees;
    m_statistics.blocks.erase(position);
    std::free(pointer);
  }

 private:
  source_statistics& m_statistics;
};

// Opens test sources by name. Names without statistics are not available.
inline source_opener make_test_opener(std::map<std::string, source_statistics*> statistics) {
  return [statistics = std::move(statistics)](const std::string& name,
                                              std::string& reason) -> std::unique_ptr<memory_source> {
    const auto position = statistics.find(name);
    if (position != statistics.end()) return std::make_unique<standin_source>(*position->second);
    reason = "no " + name + " in this test";
    return nullptr;
  };
}

// The message of the error that `call` throws. Checks its status.
template <typename Call>
std::string error_of(isthmus_status status, Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    EXPECT_EQ(failure.info().status, status) << failure.what();
    return failure.what();
  }
  return "no error";
}

}  // namespace isthmus
