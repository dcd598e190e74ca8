// A provider for tests: host memory with a limit, that counts what it gave and checks what it gets back.
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

// What a test sees of a source that the device owns.
struct source_book {
  std::mutex mutex;
  std::uint64_t limit_bytes = UINT64_MAX;
  std::uint64_t live_bytes = 0;
  int allocations = 0, frees = 0;
  isthmus_status failure = ISTHMUS_ERROR_OUT_OF_MEMORY;  // beyond the limit
  std::map<void*, std::uint64_t> blocks;
};

class standin_source final : public memory_source {
 public:
  explicit standin_source(source_book& book) : m_book(book) {}

  void* allocate(std::uint64_t bytes) override {
    const std::lock_guard lock(m_book.mutex);
    if (bytes > m_book.limit_bytes - m_book.live_bytes)
      throw make_error(m_book.failure, ISTHMUS_HERE, "the test's limit is reached", "", 77);
    void* pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    m_book.blocks[pointer] = bytes;
    m_book.live_bytes += bytes;
    ++m_book.allocations;
    return pointer;
  }

  void free(void* pointer, std::uint64_t bytes) override {
    const std::lock_guard lock(m_book.mutex);
    const auto found = m_book.blocks.find(pointer);
    ASSERT_TRUE(found != m_book.blocks.end()) << "a foreign pointer came back";
    EXPECT_EQ(found->second, bytes);
    m_book.live_bytes -= bytes;
    ++m_book.frees;
    m_book.blocks.erase(found);
    std::free(pointer);
  }

 private:
  source_book& m_book;
};

// Opens test sources by name; names without a book are missing.
inline source_opener open_from(std::map<std::string, source_book*> books) {
  return [books = std::move(books)](const std::string& name,
                                    std::string& reason) -> std::unique_ptr<memory_source> {
    const auto found = books.find(name);
    if (found != books.end()) return std::make_unique<standin_source>(*found->second);
    reason = "no " + name + " in this test";
    return nullptr;
  };
}

// The error that `call` throws, its status checked.
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
