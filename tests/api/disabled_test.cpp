// A build without an optional part keeps its C functions, which fail with the name of the CMake option.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isthmus/fused.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <cstddef>

namespace {

using testing::HasSubstr;

void expect_disabled(isthmus_status status, const char* function, const char* option) {
  EXPECT_EQ(status, ISTHMUS_ERROR_UNSUPPORTED) << function;
  isthmus_error_info info{};
  isthmus_last_error(&info);
  EXPECT_THAT(info.message, HasSubstr(function));
  EXPECT_THAT(info.hint, HasSubstr(option));
}

TEST(disabled_parts, fused_functions_name_the_cmake_option) {
  std::byte unrelated{};
  auto* plan = reinterpret_cast<isthmus_fused_plan>(&unrelated);
  auto* result = plan;
  expect_disabled(isthmus_fused_plan_create(nullptr, nullptr, &result), "fused_plan_create", "ISTHMUS_FUSED");
  EXPECT_EQ(result, nullptr);
  expect_disabled(isthmus_fused_run(plan, nullptr), "fused_run", "ISTHMUS_FUSED");
  expect_disabled(isthmus_fused_plan_info(plan, nullptr, 0, nullptr), "fused_plan_info", "ISTHMUS_FUSED");
  expect_disabled(isthmus_fused_plan_trace(plan, nullptr, 0, nullptr), "fused_plan_trace", "ISTHMUS_FUSED");
  expect_disabled(isthmus_fused_plan_destroy(plan), "fused_plan_destroy", "ISTHMUS_FUSED");
  EXPECT_EQ(isthmus_fused_plan_destroy(nullptr), ISTHMUS_SUCCESS);
}

TEST(disabled_parts, memory_functions_name_the_cmake_option) {
  const isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};
  std::byte unrelated{};
  void* pointer = &unrelated;
  expect_disabled(isthmus_memory_allocate_device(host, 64, nullptr, &pointer), "memory_allocate_device",
                  "ISTHMUS_DEVICE_MEMORY");
  EXPECT_EQ(pointer, nullptr);
  expect_disabled(isthmus_memory_resize_device(host, &pointer, 64), "memory_resize_device",
                  "ISTHMUS_DEVICE_MEMORY");
  expect_disabled(isthmus_memory_free_device(host, &unrelated), "memory_free_device", "ISTHMUS_DEVICE_MEMORY");
  EXPECT_EQ(isthmus_memory_free_device(host, nullptr), ISTHMUS_SUCCESS);
  expect_disabled(isthmus_memory_trim(host), "memory_trim", "ISTHMUS_DEVICE_MEMORY");
  isthmus_memory_info info{};
  expect_disabled(isthmus_memory_query(&unrelated, &info), "memory_query", "ISTHMUS_DEVICE_MEMORY");
  expect_disabled(isthmus_memory_explain(host, nullptr, 0, nullptr), "memory_explain", "ISTHMUS_DEVICE_MEMORY");
  const isthmus_memory_provider provider{};
  expect_disabled(isthmus_memory_register(host, &provider), "memory_register", "ISTHMUS_DEVICE_MEMORY");
  EXPECT_EQ(isthmus_memory_live_blocks(), 0u);
}

}  // namespace
