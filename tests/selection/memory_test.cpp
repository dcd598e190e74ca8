// [memory] and ISTHMUS_MEMORY_*: merging of sources.
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

using names = std::vector<std::string>;

class memory : public configured {};

TEST_F(memory, defaults_try_the_driver_before_sycl) {
  const memory_settings settings = load_configuration(nullptr).memory;
  EXPECT_EQ(settings.providers, (names{"umf", "direct", "sycl"}));
  EXPECT_EQ(settings.providers_source, "default, memory.provider");
  EXPECT_TRUE(settings.pool);
  EXPECT_EQ(settings.pool_max_block_bytes, std::uint64_t{64} << 20U);
  EXPECT_FALSE(settings.pool_keep_bytes.has_value()) << "depends on the memory of the device";
}

TEST_F(memory, names_replace_the_order_and_minus_removes) {
  write("isthmus.toml", "[memory]\nprovider = [\"sycl\", \"direct\"]\npool_max_block_bytes = \"1M\"\n");
  EXPECT_EQ(load_configuration(nullptr).memory.providers, (names{"sycl", "direct"}));
  EXPECT_EQ(load_configuration(nullptr).memory.pool_max_block_bytes, std::uint64_t{1} << 20U);
  set("ISTHMUS_MEMORY_PROVIDER", "-sycl");
  const memory_settings forbidden = load_configuration(nullptr).memory;
  EXPECT_EQ(forbidden.providers, names{"direct"});
  EXPECT_EQ(forbidden.providers_source, "environment ISTHMUS_MEMORY_PROVIDER");
  set("ISTHMUS_MEMORY_PROVIDER", "umf");
  EXPECT_EQ(load_configuration(nullptr).memory.providers, names{"umf"});
}

TEST_F(memory, source_of_the_order_is_recorded) {
  write("isthmus.toml", "[memory]\npool = false\nprovider = \"direct\"\n");
  const memory_settings settings = load_configuration(nullptr).memory;
  EXPECT_EQ(settings.providers_source, "config isthmus.toml:3, memory.provider");
  EXPECT_FALSE(settings.pool);
  set("ISTHMUS_MEMORY_POOL", "true");
  EXPECT_TRUE(load_configuration(nullptr).memory.pool);
}

TEST_F(memory, sizes_of_the_pool_are_kept_by_later_sources) {
  write("isthmus.toml", "[memory]\npool_max_block_bytes = \"1M\"\npool_keep_bytes = \"3K\"\n");
  set("ISTHMUS_MEMORY_POOL", "true");
  const memory_settings settings = load_configuration(nullptr).memory;
  EXPECT_EQ(settings.pool_max_block_bytes, std::uint64_t{1} << 20U);
  EXPECT_EQ(settings.pool_keep_bytes, std::uint64_t{3} << 10U);
}

TEST_F(memory, variables_are_checked) {
  set("ISTHMUS_MEMORY_PROVIDER", "direct,cuda");
  EXPECT_EQ(
      error_of([] { load_configuration(nullptr); }),
      "environment ISTHMUS_MEMORY_PROVIDER: unknown memory provider \"cuda\"; allowed: umf, direct, sycl | ");
  set("ISTHMUS_MEMORY_PROVIDER", nullptr);
  set("ISTHMUS_MEMORY_POOL", "off");
  EXPECT_EQ(error_of([] { load_configuration(nullptr); }),
            "environment ISTHMUS_MEMORY_POOL: unknown pool \"off\"; allowed: false, true | ");
}

TEST_F(memory, settings_can_differ_between_ranks) {
  const std::string before = load_configuration(nullptr).canonical();
  set("ISTHMUS_MEMORY_PROVIDER", "direct");
  EXPECT_EQ(load_configuration(nullptr).canonical(), before);
}

}  // namespace
}  // namespace isthmus::selection
