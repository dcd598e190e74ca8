// Order of providers, attributes of blocks, pools, and behavior when memory is exhausted.
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
  source_statistics m_umf, m_direct, m_sycl;
  std::map<std::string, source_statistics*> m_all = {{"umf", &m_umf}, {"direct", &m_direct}, {"sycl", &m_sycl}};

  ~device_memory_test() override {
    for (const source_statistics* statistics : {&m_umf, &m_direct, &m_sycl})
      EXPECT_EQ(statistics->live_bytes, 0U);
  }

  static memory_block block_of(const void* pointer) { return block_table::instance().find(pointer).value(); }
};

TEST_F(device_memory_test, first_provider_in_order_is_used) {
  device_memory memory(host, settings({"direct", "umf"}, false), make_test_opener(m_all));
  void* block = memory.allocate(1000, false);
  EXPECT_EQ(memory.provider_name(block_of(block)), "direct");
  EXPECT_EQ(m_direct.allocations, 1);
  EXPECT_EQ(m_umf.allocations, 0);
  memory.free(block);
  EXPECT_EQ(m_direct.frees, 1);
}

TEST_F(device_memory_test, zero_bytes_and_null_do_nothing) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
  EXPECT_EQ(memory.allocate(0, false), nullptr);
  memory.free(nullptr);
  EXPECT_EQ(m_umf.allocations, 0);
}

TEST_F(device_memory_test, failed_provider_falls_back_and_frees_match) {
  device_memory memory(host, settings({"umf", "direct"}, false), make_test_opener(m_all));
  m_umf.limit_bytes = 1000;
  void* first = memory.allocate(900, false);
  void* second = memory.allocate(900, false);
  m_umf.limit_bytes = 5000;
  void* third = memory.allocate(900, false);
  EXPECT_EQ(memory.provider_name(block_of(first)), "umf");
  EXPECT_EQ(memory.provider_name(block_of(second)), "direct");
  EXPECT_EQ(memory.provider_name(block_of(third)), "umf");
  // Each block is freed by the provider that allocated it, regardless of which provider would serve now.
  for (void* block : {second, first, third}) memory.free(block);
  EXPECT_EQ(m_umf.frees, 2);
  EXPECT_EQ(m_direct.frees, 1);
}

TEST_F(device_memory_test, error_lists_all_tried_providers) {
  device_memory memory(host, settings({"umf", "direct", "sycl"}, false),
                       make_test_opener({{"direct", &m_direct}}));
  m_direct.limit_bytes = 10;
  const std::string message = error_of(ISTHMUS_ERROR_OUT_OF_MEMORY, [&] { memory.allocate(11, false); });
  EXPECT_THAT(message, HasSubstr("bytes = 11 could not be allocated on host:0; tried umf: no umf in this test; "
                                 "direct: the test's limit is "
                                 "reached; sycl: no sycl in this test"));
}

TEST_F(device_memory_test, status_distinguishes_out_of_memory) {
  device_memory missing(host, settings({"umf"}), make_test_opener({}));
  error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { missing.allocate(1, false); });
  device_memory broken(host, settings({"umf"}, false), make_test_opener(m_all));
  m_umf.limit_bytes = 0;
  m_umf.failure = ISTHMUS_ERROR_BACKEND;
  error_of(ISTHMUS_ERROR_BACKEND, [&] { broken.allocate(1, false); });
  device_memory none(host, settings({}), make_test_opener(m_all));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { none.allocate(1, false); }), HasSubstr("tried none"));
}

TEST_F(device_memory_test, allocator_can_be_registered_later) {
  std::map<std::string, source_statistics*> statistics;
  device_memory memory(host, settings({"sycl"}, false), [&](const std::string& name, std::string& reason) {
    return make_test_opener(statistics)(name, reason);
  });
  error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { memory.allocate(1, false); });
  statistics["sycl"] = &m_sycl;
  memory.free(memory.allocate(1, false));
  EXPECT_EQ(m_sycl.allocations, 1);
}

TEST_F(device_memory_test, only_small_blocks_share_slabs) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(memory.allocate(1000, false));
  EXPECT_LE(m_umf.allocations, 2);
  for (const void* block : blocks) {
    EXPECT_TRUE(block_of(block).is_pooled);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0U);
  }
  const int before = m_umf.allocations;
  blocks.push_back(memory.allocate(4 * mebi + 1, false));  // above pool_max_block_bytes
  blocks.push_back(memory.allocate(1000, true));
  EXPECT_EQ(m_umf.allocations, before + 2);
  EXPECT_FALSE(block_of(blocks.back()).is_pooled);
  for (void* block : blocks) memory.free(block);
  EXPECT_EQ(m_umf.frees, 2);
}

TEST_F(device_memory_test, freed_memory_is_reused_from_the_pool) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
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

TEST_F(device_memory_test, pool_respects_keep_bytes_and_trim_empties_it) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(memory.allocate(3 * mebi, false));
  for (void* block : blocks) memory.free(block);
  // The pool keeps 16 MiB, and UMF keeps one slab of this size.
  EXPECT_GT(m_umf.live_bytes, 0U);
  EXPECT_LE(m_umf.live_bytes, 16 * mebi + 3 * mebi);
  const nlohmann::json description = memory.explain()["providers"][0]["pool"];
  EXPECT_EQ(description["reserved_bytes"], m_umf.live_bytes);
  EXPECT_LE(description["unused_bytes"], 16 * mebi);
  memory.trim();
  EXPECT_EQ(m_umf.live_bytes, 0U);
}

TEST_F(device_memory_test, pool_keeps_1_gib_if_memory_size_is_unknown) {
  selection::memory_settings default_settings = settings({"umf"});
  default_settings.pool_keep_bytes.reset();
  device_memory memory(host, default_settings, make_test_opener(m_all));
  EXPECT_EQ(memory.explain()["providers"][0]["pool"]["keep_bytes"], 1024 * mebi);
}

TEST_F(device_memory_test, pool_is_usable_after_out_of_memory) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
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
  // Unused memory in the pool must not cause a failure.
  void* large_block = memory.allocate(8 * mebi, false);
  memory.free(large_block);
}

TEST_F(device_memory_test, resize_preserves_contents) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
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

TEST_F(device_memory_test, growable_blocks_need_a_supporting_provider) {
  device_memory memory(host, settings({"umf", "direct"}), make_test_opener(m_all));
  const std::string message = error_of(ISTHMUS_ERROR_UNSUPPORTED, [&] { memory.allocate_growable(1000); });
  EXPECT_THAT(message, HasSubstr("umf: has no growable blocks; direct: has no growable blocks"));
}

TEST_F(device_memory_test, invalid_free_error_describes_the_pointer) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
  void* block = memory.allocate(1000, false);
  const auto free = [&](isthmus_device device, void* pointer) {
    return error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { device_memory::free(device, pointer); });
  };
  EXPECT_THAT(free(other, block), HasSubstr("is a block of host:0, not of cuda:3"));
  EXPECT_THAT(free(host, static_cast<char*>(block) + 10),
              HasSubstr("is 10 bytes after the start of a block of 1000"));
  int foreign = 0;
  EXPECT_THAT(free(host, &foreign), HasSubstr("is not a block of isthmus_memory_allocate_device (1 live)"));
  device_memory::free(host, block);
  EXPECT_THAT(free(host, block), HasSubstr("was already freed; it was a block of 1000 bytes on host:0"));
  EXPECT_THAT(error_of(ISTHMUS_ERROR_INVALID_ARGUMENT, [&] { memory.resize(host, block, 5); }),
              HasSubstr("memory_resize_device: pointer"));
}

TEST_F(device_memory_test, explain_shows_missing_and_used_providers) {
  device_memory memory(other, settings({"umf", "direct"}, false), make_test_opener({{"direct", &m_direct}}));
  void* block = memory.allocate(100, false);
  const nlohmann::json description = memory.explain();
  EXPECT_EQ(description["device"]["platform"], "cuda");
  EXPECT_EQ(description["order_source"], "the test");
  EXPECT_EQ(description["providers"][0]["available"], false);
  EXPECT_EQ(description["providers"][0]["reason"], "no umf in this test");
  EXPECT_EQ(description["providers"][1]["live_blocks"], 1);
  EXPECT_EQ(description["providers"][1]["live_bytes"], 100);
  EXPECT_EQ(description["providers"][1]["pool"], "memory.pool is false");
  device_memory::free(other, block);
}

TEST_F(device_memory_test, fallback_is_logged_once) {
  device_memory memory(host, settings({"umf", "direct"}, false), make_test_opener({{"direct", &m_direct}}));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) memory.free(memory.allocate(100, false));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line = "memory: host:0 falls back to provider direct: umf: no umf in this test";
  const auto found = log.find(line);
  ASSERT_NE(found, std::string::npos) << log;
  EXPECT_EQ(log.find(line, found + 1), std::string::npos) << log;
}

TEST_F(device_memory_test, threads_share_a_device_memory) {
  device_memory memory(host, settings({"umf"}), make_test_opener(m_all));
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<unsigned char*, std::uint64_t>> own_blocks;
      for (unsigned step = 0; step < 500; ++step) {
        const std::uint64_t bytes = 1 + (step * 7919U + t * 104729U) % 70000;
        auto* block = static_cast<unsigned char*>(memory.allocate(bytes, step % 50 == 0));
        std::memset(block, static_cast<int>(t + 1), bytes);
        own_blocks.emplace_back(block, bytes);
        if (step % 3 == 0) {
          const auto [old, size] = own_blocks[own_blocks.size() / 2];
          EXPECT_EQ(old[0], t + 1);
          EXPECT_EQ(old[size - 1], t + 1);
          memory.free(old);
          own_blocks.erase(own_blocks.begin() + static_cast<std::ptrdiff_t>(own_blocks.size() / 2));
        }
      }
      for (const auto& [block, bytes] : own_blocks) memory.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace isthmus
