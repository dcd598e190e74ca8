// C entry points for device memory: arguments, providers of the host, registration.
#include <gtest/gtest.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

namespace {

constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};

std::string last_message() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info.message;
}

nlohmann::json explain(isthmus_device device) {
  size_t required_bytes = 0;
  EXPECT_EQ(isthmus_memory_explain(device, nullptr, 0, &required_bytes), ISTHMUS_SUCCESS);
  std::string text(required_bytes, '\0');
  EXPECT_EQ(isthmus_memory_explain(device, text.data(), text.size(), nullptr), ISTHMUS_SUCCESS);
  return nlohmann::json::parse(text.c_str());
}

TEST(memory_api, host_blocks_are_ordinary_memory) {
  void* block = nullptr;
  ASSERT_EQ(isthmus_memory_allocate_device(host, 1000000, nullptr, &block), ISTHMUS_SUCCESS);
  std::memset(block, 7, 1000000);
  isthmus_memory_info info{};
  ASSERT_EQ(isthmus_memory_query(static_cast<char*>(block) + 999999, &info), ISTHMUS_SUCCESS);
  EXPECT_EQ(info.begin, block);
  EXPECT_EQ(info.bytes, 1000000U);
  EXPECT_EQ(isthmus_memory_live_blocks(), 1U);
  const nlohmann::json description = explain(host);
  // The first provider that is available on this machine.
  for (const auto& provider : description["providers"]) {
    if (!provider["available"].get<bool>()) continue;
    EXPECT_EQ(provider["name"], info.provider);
    EXPECT_EQ(provider["live_bytes"], 1000000);
    break;
  }
  EXPECT_EQ(isthmus_memory_query(static_cast<char*>(block) + 1000000, &info), ISTHMUS_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(isthmus_memory_free_device(host, block), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_memory_query(block, &info), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(memory_api, arguments_are_checked) {
  void* block = reinterpret_cast<void*>(8);
  EXPECT_EQ(isthmus_memory_allocate_device(host, 1, nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "memory_allocate_device: pointer is NULL");
  EXPECT_EQ(isthmus_memory_allocate_device({ISTHMUS_PLATFORM_HOST, 1}, 1, nullptr, &block),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "memory_allocate_device: device.ordinal = 1 must be 0 on platform host");
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(isthmus_memory_allocate_device({ISTHMUS_PLATFORM_CUDA, -1}, 1, nullptr, &block),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_memory_allocate_device({ISTHMUS_PLATFORM_COUNT, 0}, 1, nullptr, &block),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_memory_options options{};
  EXPECT_EQ(isthmus_memory_allocate_device(host, 1, &options, &block), ISTHMUS_ERROR_INVALID_ARGUMENT);
  options.struct_bytes = sizeof options;
  options.native_context = &options;
  EXPECT_EQ(isthmus_memory_allocate_device(host, 1, &options, &block), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_memory_resize_device(host, nullptr, 1), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_memory_query(block, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_memory_free_device(host, nullptr), ISTHMUS_SUCCESS);
}

TEST(memory_api, growable_blocks_preserve_contents) {
  isthmus_memory_options options{};
  options.struct_bytes = sizeof options;
  options.growable = 1;
  void* block = nullptr;
  ASSERT_EQ(isthmus_memory_allocate_device(host, 5000, &options, &block), ISTHMUS_SUCCESS);
  isthmus_memory_info info{};
  std::uint64_t previous_bytes = 0;
  for (const std::uint64_t bytes : {5000U, 8192U, 8193U, 3U << 20U, 200U << 20U, 4097U, 300000U}) {
    ASSERT_EQ(isthmus_memory_resize_device(host, &block, bytes), ISTHMUS_SUCCESS) << last_message();
    auto* const data = static_cast<unsigned char*>(block);
    for (std::uint64_t offset = 0; offset < bytes; offset += 1000) {
      if (offset < previous_bytes) {
        EXPECT_EQ(data[offset], static_cast<unsigned char>(offset / 1000));
      }
      data[offset] = static_cast<unsigned char>(offset / 1000);
    }
    previous_bytes = bytes;
    ASSERT_EQ(isthmus_memory_query(data + bytes - 1, &info), ISTHMUS_SUCCESS);
    EXPECT_EQ(info.bytes, bytes);
    EXPECT_EQ(info.pooled, 0);
    EXPECT_STREQ(info.provider, "direct");
    EXPECT_EQ(isthmus_memory_live_blocks(), 1U);
  }
  EXPECT_EQ(isthmus_memory_resize_device(host, &block, std::uint64_t{1} << 60U), ISTHMUS_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(static_cast<unsigned char*>(block)[1000], 1);
  ASSERT_EQ(isthmus_memory_resize_device(host, &block, 0), ISTHMUS_SUCCESS);
  EXPECT_EQ(block, nullptr);
}

TEST(memory_api, out_of_memory_lists_tried_providers) {
  void* block = nullptr;
  EXPECT_EQ(isthmus_memory_allocate_device(host, std::uint64_t{1} << 60U, nullptr, &block),
            ISTHMUS_ERROR_OUT_OF_MEMORY);
  const std::string message = last_message();
  EXPECT_NE(message.find("umf: "), std::string::npos) << message;
  EXPECT_NE(message.find("direct: mmap of"), std::string::npos) << message;
  EXPECT_EQ(block, nullptr);
}

// An allocator of a front end, on a device without other providers.
struct front_end {
  int allocated = 0, freed = 0;
  static int allocate(void* context, uint64_t bytes, void** pointer) {
    if (bytes > 1U << 30U) return 42;
    ++static_cast<front_end*>(context)->allocated;
    *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return 0;
  }
  static int free(void* context, void* pointer) {
    ++static_cast<front_end*>(context)->freed;
    std::free(pointer);
    return 0;
  }
};

TEST(memory_api, front_end_registers_its_allocator) {
  static front_end first, second;
  constexpr isthmus_device device{ISTHMUS_PLATFORM_OPENCL, 5};
  void* block = nullptr;
  EXPECT_EQ(isthmus_memory_allocate_device(device, 100, nullptr, &block), ISTHMUS_ERROR_UNSUPPORTED);
  isthmus_memory_provider provider{.struct_bytes = sizeof provider,
                                   .name = "sycl",
                                   .context = &first,
                                   .allocate = &front_end::allocate,
                                   .free = &front_end::free};
  ASSERT_EQ(isthmus_memory_register(device, &provider), ISTHMUS_SUCCESS);
  provider.context = &second;
  ASSERT_EQ(isthmus_memory_register(device, &provider), ISTHMUS_SUCCESS);
  isthmus_memory_options options{
      .struct_bytes = sizeof options, .unpooled = 1, .growable = 0, .native_context = nullptr};
  ASSERT_EQ(isthmus_memory_allocate_device(device, 100, &options, &block), ISTHMUS_SUCCESS);
  isthmus_memory_info info{};
  ASSERT_EQ(isthmus_memory_query(block, &info), ISTHMUS_SUCCESS);
  EXPECT_STREQ(info.provider, "sycl");
  EXPECT_EQ(first.allocated, 1);
  EXPECT_EQ(isthmus_memory_resize_device(device, &block, 200), ISTHMUS_ERROR_UNSUPPORTED);
  ASSERT_EQ(isthmus_memory_free_device(device, block), ISTHMUS_SUCCESS);
  ASSERT_EQ(isthmus_memory_trim(device), ISTHMUS_SUCCESS);
  EXPECT_EQ(first.freed, first.allocated);
  EXPECT_EQ(second.allocated, 0);
  EXPECT_EQ(isthmus_memory_allocate_device(device, std::uint64_t{2} << 30U, nullptr, &block),
            ISTHMUS_ERROR_OUT_OF_MEMORY);
}

TEST(memory_api, registration_is_checked) {
  isthmus_memory_provider provider{.struct_bytes = sizeof provider,
                                   .name = "mine",
                                   .context = nullptr,
                                   .allocate = &front_end::allocate,
                                   .free = &front_end::free};
  EXPECT_EQ(isthmus_memory_register(host, &provider), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "memory_register: provider->name = \"mine\" must be \"sycl\"");
  provider.name = "sycl";
  provider.free = nullptr;
  EXPECT_EQ(isthmus_memory_register(host, &provider), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "memory_register: provider->free is NULL");
  EXPECT_EQ(isthmus_memory_register(host, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

}  // namespace
