// What the oneCCL backend owes the runtime, on the stand-in, which records its calls. One rank; a process a
// test, because a process loads a vendor library once.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <isthmus/fused.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "standin.h"

namespace {

template <typename Function>
Function steer(const char* name) {
  void* const library = dlopen(std::getenv("ISTHMUS_ONECCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function>(dlsym(library, name));
}
std::string calls() {
  std::string text(1 << 12, '\0');
  text.resize(steer<decltype(&standin_calls)>("standin_calls")(text.data(), text.size()) - 1);
  return text;
}
void clear_calls() { steer<decltype(&standin_clear_calls)>("standin_clear_calls")(); }
void fail_next(const char* function, int code) {
  steer<decltype(&standin_fail)>("standin_fail")(function, 1, code);
}

isthmus_error_info last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info;
}

// The ranks of one process on a platform that is oneCCL's.
struct ranks {
  explicit ranks(int size, isthmus_platform platform = ISTHMUS_PLATFORM_OPENCL)
      : handles(static_cast<std::size_t>(size)) {
    // No default names a backend for OpenCL.
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

TEST_F(oneccl_contract, one_operation_is_one_native_call_on_the_callers_queue) {
  const ranks one(1);
  ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
  clear_calls();
  data[0] = 3;
  result[0] = 0;
  ASSERT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, one.handles[0], &queue), ISTHMUS_SUCCESS)
      << last_error().message;
  queue.wait();
  EXPECT_EQ(result[0], 3);
  EXPECT_EQ(calls(), "onecclAllGather\n");
  clear_calls();
  ASSERT_EQ(isthmus_barrier(one.handles[0], &queue), ISTHMUS_SUCCESS) << last_error().message;
  queue.wait();
  EXPECT_EQ(calls(), "onecclAllReduce\n") << "it has no barrier of its own";
}

TEST_F(oneccl_contract, explain_names_the_library) {
  const ranks one(1);
  ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = 8;
  std::vector<char> text(1 << 16);
  ASSERT_EQ(isthmus_communicator_explain(one.handles[0], &operation, text.data(), text.size(), nullptr),
            ISTHMUS_SUCCESS);
  const auto told = nlohmann::json::parse(text.data());
  EXPECT_EQ(told.at("backend"), "oneccl");
  EXPECT_EQ(told.at("version"), "2022.2.0");
}

TEST_F(oneccl_contract, fused_plans_are_refused_with_the_reason_and_what_does_it_there) {
  for (const auto platform : {ISTHMUS_PLATFORM_LEVEL_ZERO, ISTHMUS_PLATFORM_OPENCL}) {
    const ranks one(1, platform);
    ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
    isthmus_fused_description asked{};
    asked.struct_bytes = sizeof asked;
    asked.m = asked.n = asked.k = 8;
    asked.input = asked.output = ISTHMUS_FLOAT16;
    isthmus_fused_plan plan = nullptr;
    EXPECT_EQ(isthmus_fused_plan_create(one.handles[0], &asked, &plan), ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(plan, nullptr);
    const std::string message = last_error().message, hint = last_error().hint;
    EXPECT_NE(message.find(isthmus_platform_name(platform)), std::string::npos) << message;
    EXPECT_NE(message.find("cannot wait for a word of memory"), std::string::npos) << message;
    EXPECT_NE(hint.find("isthmus/sycl/fused.hpp"), std::string::npos) << hint;
  }
}

TEST_F(oneccl_contract, a_native_failure_keeps_its_code_name_text_and_hint) {
  const ranks one(1);
  ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
  fail_next("onecclAllGather", 7);
  result[0] = 5;
  EXPECT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, one.handles[0], &queue), ISTHMUS_ERROR_BACKEND);
  const isthmus_error_info what = last_error();
  EXPECT_EQ(what.native_code, 7);
  EXPECT_STREQ(what.backend, "oneccl");
  EXPECT_NE(std::string(what.message).find("onecclAllGather: onecclFailureGPU: stand-in"), std::string::npos)
      << what.message;
  EXPECT_NE(std::string(what.hint).find("earlier fault"), std::string::npos) << what.hint;
  EXPECT_EQ(result[0], 5) << "nothing was written";
}

TEST_F(oneccl_contract, a_call_that_its_plugin_lacks_is_unsupported) {
  const ranks one(1);
  ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
  fail_next("onecclAllGather", 12);
  EXPECT_EQ(isthmus_allgather(data, result, 1, ISTHMUS_FLOAT32, one.handles[0], &queue),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message).find("onecclNotImplemented"), std::string::npos);
}

TEST_F(oneccl_contract, alltoall_in_place_is_refused_because_there_is_no_memory_for_the_copy) {
  const ranks one(1);
  ASSERT_EQ(one.status, ISTHMUS_SUCCESS) << last_error().message;
  EXPECT_NE(isthmus_alltoall(data, data, 8, ISTHMUS_FLOAT32, one.handles[0], &queue), ISTHMUS_SUCCESS);
  EXPECT_NE(std::string(last_error().message).find("AllToAll in place"), std::string::npos)
      << last_error().message;
}

TEST_F(oneccl_contract, a_failure_while_ranks_meet_fails_the_communicator_with_the_native_code) {
  fail_next("onecclCommInitRank", 2);
  const ranks one(1);
  EXPECT_EQ(one.status, ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(last_error().native_code, 2);
  EXPECT_NE(std::string(last_error().message).find("onecclSystemError"), std::string::npos);
}

// One device for each process is a capability, which the selector knows before it asks the library.
TEST_F(oneccl_contract, two_ranks_in_one_process_do_not_reach_the_library) {
  const ranks two(2);
  EXPECT_EQ(two.status, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(
      std::string(last_error().message).find("oneccl: it allows one rank per process, this process has 2"),
      std::string::npos)
      << last_error().message;
  EXPECT_EQ(calls(), "");
}

TEST_F(oneccl_contract, too_old_a_library_is_left_alone_with_the_reason) {
  setenv("STANDIN_ONECCL_VERSION", "20210600", 1);
  const ranks one(1);
  EXPECT_EQ(one.status, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message).find("oneCCL 2021.6.0; 2022 or newer"), std::string::npos)
      << last_error().message;
}

}  // namespace
