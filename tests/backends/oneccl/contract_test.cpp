// The contract of the oneCCL backend, on the stand-in, which records its calls. One rank, and one process per
// test, because a process loads a vendor library only once.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <isthmus/fused.h>
#include <isthmus/tools.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "standin.h"

namespace {

template <typename Function>
Function standin_symbol(const char* name) {
  void* const library = dlopen(std::getenv("ISTHMUS_ONECCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function>(dlsym(library, name));
}
std::string calls() {
  std::string text(1 << 12, '\0');
  text.resize(standin_symbol<decltype(&standin_calls)>("standin_calls")(text.data(), text.size()) - 1);
  return text;
}
void clear_calls() { standin_symbol<decltype(&standin_clear_calls)>("standin_clear_calls")(); }
void fail_next(const char* function, int code) {
  standin_symbol<decltype(&standin_fail)>("standin_fail")(function, 1, code);
}

isthmus_error_info last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info;
}

// The ranks of one process on a platform of oneCCL.
struct ranks {
  explicit ranks(int size, isthmus_platform platform = ISTHMUS_PLATFORM_OPENCL)
      : handles(static_cast<std::size_t>(size)) {
    // No default rule names a backend for OpenCL.
    const std::string rule = std::string("platform=") + isthmus_platform_name(platform) + " use=oneccl";
    setenv("ISTHMUS_RULE", rule.c_str(), 1);
    const std::vector<isthmus_device> devices(handles.size(), isthmus_device{platform, 0});
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof(options);
    options.timeout_s = 20;
    status = isthmus_communicator_create_all(size, devices.data(), &options, handles.data());
  }
  ~ranks() {
    for (isthmus_communicator each : handles)
      if (each != nullptr) isthmus_communicator_destroy(each);
  }
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;

  std::vector<isthmus_communicator> handles;
  isthmus_status status;
};

struct oneccl_contract : ::testing::Test {
  sycl::queue queue{sycl::cpu_selector_v, sycl::property::queue::in_order()};
  float* data = sycl::malloc_host<float>(8, queue);
  float* result = sycl::malloc_host<float>(8, queue);
  ~oneccl_contract() override {
    queue.wait();
    sycl::free(data, queue);
    sycl::free(result, queue);
  }
};

TEST_F(oneccl_contract, operation_is_one_native_call_on_the_queue) {
  const ranks single_rank(1);
  ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
  clear_calls();
  data[0] = 3;
  result[0] = 0;
  ASSERT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, single_rank.handles[0], &queue),
            ISTHMUS_SUCCESS)
      << last_error().message;
  queue.wait();
  EXPECT_EQ(result[0], 3);
  EXPECT_EQ(calls(), "onecclAllGather\n");
  clear_calls();
  ASSERT_EQ(isthmus_barrier(single_rank.handles[0], &queue), ISTHMUS_SUCCESS) << last_error().message;
  queue.wait();
  EXPECT_EQ(calls(), "onecclAllReduce\n") << "oneCCL has no barrier";
}

TEST_F(oneccl_contract, explain_names_the_library) {
  const ranks single_rank(1);
  ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = 8;
  std::vector<char> text(1 << 16);
  ASSERT_EQ(isthmus_communicator_explain(single_rank.handles[0], &operation, text.data(), text.size(), nullptr),
            ISTHMUS_SUCCESS);
  const auto explanation = nlohmann::json::parse(text.data());
  EXPECT_EQ(explanation.at("backend"), "oneccl");
  EXPECT_EQ(explanation.at("version"), "2022.2.0");
}

TEST_F(oneccl_contract, fused_plan_is_refused_with_reason_and_hint) {
  for (const auto platform : {ISTHMUS_PLATFORM_LEVEL_ZERO, ISTHMUS_PLATFORM_OPENCL}) {
    const ranks single_rank(1, platform);
    ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.m = description.n = description.k = 8;
    description.input = description.output = ISTHMUS_FLOAT16;
    isthmus_fused_plan plan = nullptr;
    EXPECT_EQ(isthmus_fused_plan_create(single_rank.handles[0], &description, &plan),
              ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(plan, nullptr);
    const std::string message = last_error().message, hint = last_error().hint;
    EXPECT_NE(message.find(isthmus_platform_name(platform)), std::string::npos) << message;
    EXPECT_NE(message.find("cannot wait for a word of memory"), std::string::npos) << message;
    EXPECT_NE(hint.find("isthmus/sycl/fused.hpp"), std::string::npos) << hint;
  }
}

TEST_F(oneccl_contract, native_failure_keeps_code_text_and_hint) {
  const ranks single_rank(1);
  ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
  fail_next("onecclAllGather", 7);
  result[0] = 5;
  EXPECT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, single_rank.handles[0], &queue),
            ISTHMUS_ERROR_BACKEND);
  const isthmus_error_info error = last_error();
  EXPECT_EQ(error.native_code, 7);
  EXPECT_STREQ(error.backend, "oneccl");
  EXPECT_NE(std::string(error.message).find("onecclAllGather: onecclFailureGPU: stand-in"), std::string::npos)
      << error.message;
  EXPECT_NE(std::string(error.hint).find("earlier faults"), std::string::npos) << error.hint;
  EXPECT_EQ(result[0], 5) << "the result was overwritten";
}

TEST_F(oneccl_contract, missing_native_call_is_unsupported) {
  const ranks single_rank(1);
  ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
  fail_next("onecclAllGather", 12);
  EXPECT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, single_rank.handles[0], &queue),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message).find("onecclNotImplemented"), std::string::npos);
}

TEST_F(oneccl_contract, alltoall_in_place_is_refused) {
  const ranks single_rank(1);
  ASSERT_EQ(single_rank.status, ISTHMUS_SUCCESS) << last_error().message;
  EXPECT_NE(isthmus_alltoall(data, data, 8, ISTHMUS_FLOAT32, single_rank.handles[0], &queue), ISTHMUS_SUCCESS);
  EXPECT_NE(std::string(last_error().message).find("AllToAll in place"), std::string::npos)
      << last_error().message;
}

TEST_F(oneccl_contract, init_failure_keeps_the_native_code) {
  fail_next("onecclCommInitRank", 2);
  const ranks single_rank(1);
  EXPECT_EQ(single_rank.status, ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(last_error().native_code, 2);
  EXPECT_NE(std::string(last_error().message).find("onecclSystemError"), std::string::npos);
}

// One rank per process is a capability, which the selection checks before it calls the library.
TEST_F(oneccl_contract, two_ranks_per_process_are_refused) {
  const ranks two_ranks(2);
  EXPECT_EQ(two_ranks.status, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message)
                .find("oneccl: it supports one rank per process, and this process has 2"),
            std::string::npos)
      << last_error().message;
  EXPECT_EQ(calls(), "");
}

TEST_F(oneccl_contract, old_library_is_unsupported) {
  setenv("STANDIN_ONECCL_VERSION", "20210600", 1);
  const ranks single_rank(1);
  EXPECT_EQ(single_rank.status, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message).find("oneCCL 2021.6.0; version 2022 or newer is required"),
            std::string::npos)
      << last_error().message;
}

}  // namespace
