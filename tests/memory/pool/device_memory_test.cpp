// The order of providers, what each block remembers, pools, and what happens when memory runs out.
#include "memory/pool/device_memory.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "memory/pool/standin_source.hpp"

namespace isthmus {
namespace {

using testing::HasSubstr;

constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};
constexpr isthmus_device other{ISTHMUS_PLATFORM_CUDA, 3};
constexpr std::uint64_t mebi = std::uint64_t{1} << 20U;

selection::memory_settings settings(std::vector<std::string> providers, bool pool = true) {
  return {std::move(providers), "the test", pool, 4 * mebi, 16 * mebi};
}

class device_memory_test : public testing::Test {
 protected:
  source_book m_umf, m_direct, m_sycl;
  std::map<std::string, source_book*> m_all = {{"umf", &m_umf}, {"direct", &m_direct}, {"sycl", &m_sycl}};

  ~device_memory_test() override {
    for (const source_book* book : {&m_umf, &m_direct, &m_sycl}) EXPECT_EQ(book->live_bytes, 0U);
  }

  static memory_block block_of(const void* pointer) { return block_table::instance().find(pointer).value(); }
};

TEST_F(device_memory_test, the_first_provider_of_the_order_serves) {
  device_memory memory(host, settings({"direct", "umf"}, false), open_from(m_all));
  void* block = memory.allocate(1000, false);
  EXPECT_EQ(memory.provider_name(block_of(block)), "direct");
  EXPECT_EQ(m_direct.allocations, 1);
  EXPECT_EQ(m_umf.allocations, 0);
  memory.free(block);
  EXPECT_EQ(m_direct.frees, 1);
}

TEST_F(device_memory_test, zero_bytes_and_null_are_nothing) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  EXPECT_EQ(memory.allocate(0, false), nullptr);
  memory.free(nullptr);
  EXPECT_EQ(m_umf.allocations, 0);
}

TEST_F(device_memory_test, a_failing_provider_gives_way_and_each_block_goes_home) {
  device_memory memory(host, settings({"umf", "direct"}, false), open_from(m_all));
  m_umf.limit_bytes = 1000;
  void* first = memory.allocate(900, false);
  void* second = memory.allocate(900, false);
  m_umf.limit_bytes = 5000;
  void* third = memory.allocate(900, false);
  EXPECT_EQ(memory.provider_name(block_of(first)), "umf");
  EXPECT_EQ(memory.provider_name(block_of(second)), "direct");
  EXPECT_EQ(memory.provider_name(block_of(third)), "umf");
  // Against the order, and whatever would serve now: each goes to the provider that made it.
  for (void* block : {second, first, third}) memory.free(block);
  EXPECT_EQ(m_umf.frees, 2);
  EXPECT_EQ(m_direct.frees, 1);
}

TEST_F(device_memory_test, the_error_lists_everything_that_was_tried) {
  device_memory memory(host, settings({"umf", "direct", "sycl"}, false), open_from({{"direct", &m_direct}}));
  m_direct.limit_bytes = 10;
  const std::string message = error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] { memory.allocate(11, false); });
  EXPECT_THAT(message,
              HasSubstr("11 bytes on host:0; tried umf: no umf in this test; direct: the test's limit is "
                        "reached; sycl: no sycl in this test"));
}

TEST_F(device_memory_test, the_status_says_whether_memory_is_the_reason) {
  device_memory missing(host, settings({"umf"}), open_from({}));
  error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { missing.allocate(1, false); });
  device_memory broken(host, settings({"umf"}, false), open_from(m_all));
  m_umf.limit_bytes = 0;
  m_umf.failure = ISTHMUS_ERROR_BACKEND;
  error_of(ISTHMUS_ERROR_BACKEND, [&] { broken.allocate(1, false); });
  device_memory none(host, settings({}), open_from(m_all));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { none.allocate(1, false); }), HasSubstr("tried none"));
}

TEST_F(device_memory_test, a_program_may_register_its_allocator_later) {
  std::map<std::string, source_book*> books;
  device_memory memory(host, settings({"sycl"}, false), [&](const std::string& name, std::string& reason) {
    return open_from(books)(name, reason);
  });
  error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { memory.allocate(1, false); });
  books["sycl"] = &m_sycl;
  memory.free(memory.allocate(1, false));
  EXPECT_EQ(m_sycl.allocations, 1);
}

TEST_F(device_memory_test, small_blocks_share_slabs_and_large_ones_are_their_own) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(memory.allocate(1000, false));
  EXPECT_LE(m_umf.allocations, 2);
  for (const void* block : blocks) {
    EXPECT_TRUE(block_of(block).is_pooled);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0U);
  }
  const int before = m_umf.allocations;
  blocks.push_back(memory.allocate(4 * mebi + 1, false));  // above pool_max_bytes
  blocks.push_back(memory.allocate(1000, true));
  EXPECT_EQ(m_umf.allocations, before + 2);
  EXPECT_FALSE(block_of(blocks.back()).is_pooled);
  for (void* block : blocks) memory.free(block);
  EXPECT_EQ(m_umf.frees, 2);
}

TEST_F(device_memory_test, freed_memory_is_used_again_without_the_provider) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  const auto round = [&] {
    std::vector<void*> blocks;
    for (std::uint64_t i = 1; i <= 40; ++i) blocks.push_back(memory.allocate(i * 20000, false));
    for (void* block : blocks) memory.free(block);
  };
  round();
  const int before = m_umf.allocations;
  for (int i = 0; i < 10; ++i) round();
  EXPECT_EQ(m_umf.allocations, before);
}

TEST_F(device_memory_test, a_pool_keeps_no_more_than_it_may_and_trim_empties_it) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(memory.allocate(3 * mebi, false));
  for (void* block : blocks) memory.free(block);
  // 16 MiB are kept here, and one slab of the size by UMF.
  EXPECT_GT(m_umf.live_bytes, 0U);
  EXPECT_LE(m_umf.live_bytes, 16 * mebi + 3 * mebi);
  const nlohmann::json told = memory.explain()["providers"][0]["pool"];
  EXPECT_EQ(told["taken_bytes"], m_umf.live_bytes);
  EXPECT_LE(told["unused_bytes"], 16 * mebi);
  memory.trim();
  EXPECT_EQ(m_umf.live_bytes, 0U);
}

TEST_F(device_memory_test, a_pool_keeps_1_gib_where_the_device_does_not_say_what_it_has) {
  selection::memory_settings nothing_said = settings({"umf"});
  nothing_said.pool_keep_bytes.reset();
  device_memory memory(host, nothing_said, open_from(m_all));
  EXPECT_EQ(memory.explain()["providers"][0]["pool"]["keep_bytes"], 1024 * mebi);
}

TEST_F(device_memory_test, running_out_leaves_the_pool_usable) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  m_umf.limit_bytes = 8 * mebi;
  std::vector<void*> blocks;
  const std::string message = error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] {
    for (;;) blocks.push_back(memory.allocate(mebi, false));
  });
  EXPECT_THAT(message, HasSubstr("the test's limit is reached"));
  EXPECT_EQ(blocks.size(), 8U);
  for (void* block : blocks) std::memset(block, 1, mebi);
  memory.free(blocks.back());
  blocks.back() = memory.allocate(mebi, false);
  for (void* block : blocks) memory.free(block);
  // What the pool holds unused is no reason to fail either.
  void* whole = memory.allocate(8 * mebi, false);
  memory.free(whole);
}

TEST_F(device_memory_test, resizing_keeps_what_fits) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  auto* bytes = static_cast<unsigned char*>(memory.resize(host, nullptr, 5000));
  for (int i = 0; i < 5000; ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  bytes = static_cast<unsigned char*>(memory.resize(host, bytes, 5 * mebi));
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(bytes[i], static_cast<unsigned char>(i * 7));
  bytes = static_cast<unsigned char*>(memory.resize(host, bytes, 100));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(bytes[i], static_cast<unsigned char>(i * 7));
  m_umf.limit_bytes = m_umf.live_bytes;
  error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] { memory.resize(host, bytes, 100 * mebi); });
  for (int i = 0; i < 100; ++i) ASSERT_EQ(bytes[i], static_cast<unsigned char>(i * 7));
  EXPECT_EQ(memory.resize(host, bytes, 0), nullptr);
}

TEST_F(device_memory_test, growable_blocks_are_told_apart_where_no_provider_has_them) {
  device_memory memory(host, settings({"umf", "direct"}), open_from(m_all));
  const std::string message = error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { memory.allocate_growable(1000); });
  EXPECT_THAT(message, HasSubstr("umf: has no growable blocks; direct: has no growable blocks"));
}

TEST_F(device_memory_test, wrong_frees_say_what_is_wrong) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  void* block = memory.allocate(1000, false);
  const auto free = [&](isthmus_device device, void* pointer) {
    return error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { device_memory::free(device, pointer); });
  };
  EXPECT_THAT(free(other, block), HasSubstr("is a block of host:0, not of cuda:3"));
  EXPECT_THAT(free(host, static_cast<char*>(block) + 10),
              HasSubstr("is 10 bytes behind the start of a block of 1000"));
  int foreign = 0;
  EXPECT_THAT(free(host, &foreign), HasSubstr("is no block of isthmus_memory_allocate_device (1 live)"));
  device_memory::free(host, block);
  EXPECT_THAT(free(host, block), HasSubstr("was freed before; it was a block of 1000 bytes on host:0"));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { memory.resize(host, block, 5); }),
              HasSubstr("memory_resize_device: pointer"));
}

TEST_F(device_memory_test, explain_shows_what_is_missing_and_who_serves) {
  device_memory memory(other, settings({"umf", "direct"}, false), open_from({{"direct", &m_direct}}));
  void* block = memory.allocate(100, false);
  const nlohmann::json told = memory.explain();
  EXPECT_EQ(told["device"]["platform"], "cuda");
  EXPECT_EQ(told["order_source"], "the test");
  EXPECT_EQ(told["providers"][0]["available"], false);
  EXPECT_EQ(told["providers"][0]["reason"], "no umf in this test");
  EXPECT_EQ(told["providers"][1]["live_blocks"], 1);
  EXPECT_EQ(told["providers"][1]["live_bytes"], 100);
  EXPECT_EQ(told["providers"][1]["pool"], "memory.pool is false");
  device_memory::free(other, block);
}

TEST_F(device_memory_test, a_fallback_is_logged_once) {
  device_memory memory(host, settings({"umf", "direct"}, false), open_from({{"direct", &m_direct}}));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) memory.free(memory.allocate(100, false));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line = "memory: host:0 takes blocks from direct because of umf: no umf in this test";
  const auto found = log.find(line);
  ASSERT_NE(found, std::string::npos) << log;
  EXPECT_EQ(log.find(line, found + 1), std::string::npos) << log;
}

TEST_F(device_memory_test, threads_share_a_device) {
  device_memory memory(host, settings({"umf"}), open_from(m_all));
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<unsigned char*, std::uint64_t>> mine;
      for (unsigned step = 0; step < 500; ++step) {
        const std::uint64_t bytes = 1 + (step * 7919U + t * 104729U) % 70000;
        auto* block = static_cast<unsigned char*>(memory.allocate(bytes, step % 50 == 0));
        std::memset(block, static_cast<int>(t + 1), bytes);
        mine.emplace_back(block, bytes);
        if (step % 3 == 0) {
          const auto [old, size] = mine[mine.size() / 2];
          EXPECT_EQ(old[0], t + 1);
          EXPECT_EQ(old[size - 1], t + 1);
          memory.free(old);
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(mine.size() / 2));
        }
      }
      for (const auto& [block, bytes] : mine) memory.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace isthmus
