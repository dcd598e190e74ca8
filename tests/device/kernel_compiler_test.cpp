// Tests run-time compilation with stand-ins for NVRTC and HIPRTC on stand-in devices. With TEST_PLATFORM=nvrtc,
// it uses a real NVRTC; the stand-in devices load its code but cannot launch it.
#include "device/kernel_compiler.hpp"

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/copy_engine/reduction.hpp"
#include "base/error.hpp"
#include "standins/standin.h"

namespace {

using isthmus::device_driver;
using isthmus::kernel_compiler;
using isthmus::kernel_source;

std::string test_platform() { return std::getenv("TEST_PLATFORM"); }
isthmus_platform platform() { return test_platform() == "hip" ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA; }
bool is_real() { return test_platform() == "nvrtc"; }

device_driver& driver() {
  std::string reason;
  device_driver* const loaded = device_driver::get(platform(), reason);
  if (loaded == nullptr) throw std::runtime_error(reason);
  return *loaded;
}

kernel_compiler& compiler() {
  std::string reason;
  kernel_compiler* const loaded = kernel_compiler::get(platform(), driver(), nullptr, reason);
  if (loaded == nullptr) throw std::runtime_error(reason);
  return *loaded;
}

kernel_source source_of(const std::string& element, const std::string& operation) {
  return {"reduction_kernel.cu",
          isthmus::copy_engine::reduction_kernel_text,
          "backends/copy_engine/reduction_arguments.hpp",
          isthmus::copy_engine::reduction_arguments_text,
          {"ISTHMUS_ELEMENT=" + element, "ISTHMUS_OPERATION=" + operation},
          "isthmus_combine"};
}

isthmus_error_info error_of_call(int device, const kernel_source& source) {
  try {
    compiler().kernel(driver(), device, source);
  } catch (const isthmus::error& caught) {
    return caught.info();
  }
  return {};
}

int count_loads() {
  return standin_driver_calls(platform() == ISTHMUS_PLATFORM_HIP ? "hipModuleLoadData" : "cuModuleLoadData");
}

TEST(kernel_compiler, compiles_a_kernel_once_per_device) {
  if (is_real()) GTEST_SKIP();
  const int previous_loads = count_loads();
  std::vector<isthmus::native_kernel> kernels(6);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kernels.size(); ++i)
      threads.emplace_back([&kernels, i] {
        kernels[i] = compiler().kernel(driver(), static_cast<int>(i % 2), source_of("int32", "sum"));
      });
  }
  EXPECT_EQ(count_loads() - previous_loads, 2);
  for (std::size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(kernels[i], kernels[i % 2]);
  EXPECT_NE(kernels[0], kernels[1]);
  EXPECT_NE(compiler().kernel(driver(), 0, source_of("int32", "max")), kernels[0]);
  EXPECT_EQ(standin_context_depth(), 0);
}

TEST(kernel_compiler, kernels_run_on_their_stream) {
  if (is_real()) GTEST_SKIP();
  const auto kernel = compiler().kernel(driver(), 3, source_of("int32", "sum"));
  const auto stream = driver().create_stream(3, isthmus::stream_priority::raised);
  constexpr std::size_t count = 100, bytes = count * 4, row = 512;
  auto* const block = static_cast<std::byte*>(driver().allocate(3, 4 * row));
  auto* const numbers = reinterpret_cast<std::int32_t*>(block);
  for (std::size_t i = 0; i < 3 * row / 4; ++i) numbers[i] = static_cast<std::int32_t>(i * i);
  isthmus::copy_engine::reduction_arguments arguments{block, row, block + 2 * row, block + 3 * row, count,
                                                      1,     3};
  void* argument = &arguments;
  driver().launch(3, kernel, 2, 64, {&argument, 1}, stream);
  arguments = {};
  driver().synchronize(3, stream);
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ(numbers[3 * row / 4 + i], numbers[i] + numbers[row / 4 + i] + numbers[2 * row / 4 + i]);
  static_assert(bytes <= row);
  driver().free(3, block);
  driver().destroy_stream(3, stream);
}

TEST(kernel_compiler, errors_contain_the_compiler_log) {
  const kernel_source wrong{"reduction_kernel.cu", "a file of another kind\n", "none.hpp", "", {},
                            "isthmus_combine"};
  const auto info = error_of_call(0, wrong);
  EXPECT_EQ(info.status, ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(std::string(info.message).find(is_real() ? "reduction_kernel.cu(1): error" : "stand-in: not the"),
            std::string::npos)
      << info.message;
  EXPECT_NE(info.native_code, 0);
}

TEST(kernel_compiler, unknown_device_gets_code_for_an_older_one) {
  if (platform() == ISTHMUS_PLATFORM_HIP || is_real()) GTEST_SKIP();
  standin_set_capability(12, 0);
  EXPECT_NE(compiler().kernel(driver(), 0, source_of("int32", "min")), nullptr);
  standin_set_capability(5, 2);
  EXPECT_EQ(error_of_call(0, source_of("int32", "prod")).status, ISTHMUS_ERROR_UNSUPPORTED);
  standin_set_capability(9, 0);
  EXPECT_NE(compiler().kernel(driver(), 0, source_of("int32", "prod")), nullptr)
      << "a failure must not be cached";
}

TEST(kernel_compiler, other_platforms_have_no_compiler) {
  std::string reason;
  EXPECT_EQ(kernel_compiler::get(ISTHMUS_PLATFORM_LEVEL_ZERO, driver(), nullptr, reason), nullptr);
  EXPECT_NE(reason, "");
}

TEST(kernel_compiler, real_compiler_accepts_every_datatype) {
  if (!is_real()) GTEST_SKIP();
  for (int type = 0; type < ISTHMUS_DATATYPE_COUNT; ++type) {
    const char* element = isthmus_datatype_name(static_cast<isthmus_datatype>(type));
    const char* op =
        isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(type % ISTHMUS_REDUCTION_OP_COUNT));
    EXPECT_NE(compiler().kernel(driver(), 0, source_of(element, op)), nullptr) << element;
  }
  standin_set_capability(8, 0);
  EXPECT_NE(compiler().kernel(driver(), 1, source_of("float16", "sum")), nullptr);
}

}  // namespace
