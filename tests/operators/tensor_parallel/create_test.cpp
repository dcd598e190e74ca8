// Arguments that create rejects, and the calls that an external engine receives.
#include <gtest/gtest.h>
#include <isthmus/tensor_parallel.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace {

std::string last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info.message;
}

// Expects that a failed call leaves no handle.
isthmus_status create(int n, const isthmus_device* devices, const isthmus_stream* streams,
                      const isthmus_tensor_parallel_options* options) {
  int other = 0;
  auto handle = reinterpret_cast<isthmus_tensor_parallel>(&other);
  const isthmus_status status = isthmus_tensor_parallel_create(n, devices, streams, options, &handle);
  EXPECT_EQ(handle, nullptr);
  return status;
}

TEST(tensor_parallel_create, rejects_devices_of_several_platforms) {
  const isthmus_device devices[] = {{ISTHMUS_PLATFORM_HOST, 0}, {ISTHMUS_PLATFORM_CUDA, 0}};
  EXPECT_EQ(create(2, devices, nullptr, nullptr), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(last_error().find("devices[1] on cuda"), std::string::npos) << last_error();
}

TEST(tensor_parallel_create, rejects_bad_arguments) {
  const std::vector<isthmus_device> devices(17, isthmus_device{ISTHMUS_PLATFORM_HOST, 0});
  EXPECT_EQ(create(0, devices.data(), nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(create(17, devices.data(), nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("17"), std::string::npos);
  EXPECT_EQ(create(2, nullptr, nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  const isthmus_device wild{static_cast<isthmus_platform>(77), 0};
  EXPECT_EQ(create(1, &wild, nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_tensor_parallel_options options{};
  EXPECT_EQ(create(2, devices.data(), nullptr, &options), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("struct_bytes"), std::string::npos);
  options.struct_bytes = sizeof options;
  options.timeout_s = -1;
  EXPECT_EQ(create(2, devices.data(), nullptr, &options), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_tensor_parallel_create(2, devices.data(), nullptr, nullptr, nullptr),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_tensor_parallel_destroy(nullptr), ISTHMUS_SUCCESS);
}

TEST(tensor_parallel_create, error_names_platform_without_engine) {
  const isthmus_device device{ISTHMUS_PLATFORM_LEVEL_ZERO, 0};
  EXPECT_EQ(create(1, &device, nullptr, nullptr), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(last_error().find("level_zero"), std::string::npos) << last_error();
}

// Records the last call of the test engine.
struct engine_call {
  std::uint64_t count = 0;
  isthmus_tensor_parallel_algorithm algorithm = ISTHMUS_ONE_SHOT;
  bool bfloat16_wire = false;
  int open = 0, closed = 0;
  bool answer = true;
} recorded;

void* open_engine(int n, const isthmus_device*, const isthmus_stream*, double, char* reason,
                  std::size_t bytes) {
  if (n == 13) {
    std::snprintf(reason, bytes, "unlucky");
    return nullptr;
  }
  ++recorded.open;
  return &recorded;
}
bool record(void*, void* const*, std::uint64_t count, isthmus_datatype, std::uint64_t,
            isthmus_tensor_parallel_algorithm requested_algorithm, bool wire) {
  recorded.count = count;
  recorded.algorithm = requested_algorithm;
  recorded.bfloat16_wire = wire;
  return recorded.answer;
}
void close_engine(void*) { ++recorded.closed; }

const isthmus_tensor_parallel_engine engine = {.struct_bytes = sizeof engine,
                                               .abi_version = ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
                                               .platforms = 1u << ISTHMUS_PLATFORM_CUDA,
                                               .name = "test",
                                               .open = open_engine,
                                               .allreduce = record,
                                               .close = close_engine};

isthmus_tensor_parallel make(int n, isthmus_wire wire = ISTHMUS_WIRE_AUTO, const char* config = nullptr) {
  const std::vector<isthmus_device> devices(static_cast<std::size_t>(n),
                                            isthmus_device{ISTHMUS_PLATFORM_CUDA, 0});
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.engine = &engine;
  options.wire = wire;
  options.config_path = config;
  isthmus_tensor_parallel handle = nullptr;
  isthmus_tensor_parallel_create(n, devices.data(), nullptr, &options, &handle);
  return handle;
}

TEST(tensor_parallel_engine, gets_algorithm_and_wire_from_the_rules) {
  float data[4];
  void* pointers[4] = {data, data, data, data};
  const auto run_call = [&](isthmus_tensor_parallel handle, std::uint64_t count,
                            isthmus_datatype type = ISTHMUS_FLOAT32) {
    EXPECT_EQ(isthmus_tensor_parallel_allreduce(handle, pointers, count, type, ISTHMUS_ALL_ACTIVE),
              ISTHMUS_SUCCESS)
        << last_error();
    EXPECT_EQ(recorded.count, count);
    return recorded;
  };
  const auto two = make(2), four = make(4), exact = make(4, ISTHMUS_WIRE_EXACT);
  EXPECT_FALSE(run_call(two, 32767).bfloat16_wire);
  EXPECT_TRUE(run_call(two, 32768).bfloat16_wire);
  EXPECT_FALSE(run_call(four, 32768).bfloat16_wire);
  EXPECT_TRUE(run_call(four, 1 << 20).bfloat16_wire);
  EXPECT_FALSE(run_call(exact, 1 << 20).bfloat16_wire);
  EXPECT_FALSE(run_call(two, 1 << 20, ISTHMUS_FLOAT16).bfloat16_wire);
  EXPECT_EQ(run_call(exact, 1024).algorithm, ISTHMUS_ONE_SHOT);
  EXPECT_EQ(run_call(exact, 768 * 1024 / 4 - 1).algorithm, ISTHMUS_ONE_SHOT);
  EXPECT_EQ(run_call(exact, 768 * 1024 / 4).algorithm, ISTHMUS_TWO_SHOT);
  EXPECT_EQ(run_call(four, 768 * 1024 / 4).algorithm, ISTHMUS_ONE_SHOT) << "half the bytes are sent";
  EXPECT_EQ(run_call(exact, std::uint64_t(1) << 34).algorithm, ISTHMUS_TWO_SHOT);
  const auto exact_two = make(2, ISTHMUS_WIRE_EXACT);
  EXPECT_EQ(run_call(exact_two, (8 << 20) - 1).algorithm, ISTHMUS_TWO_SHOT);
  EXPECT_EQ(run_call(exact_two, 8 << 20).algorithm, ISTHMUS_TWO_SHOT_ZERO_COPY);
  EXPECT_EQ(run_call(exact_two, 16 << 20, ISTHMUS_FLOAT16).algorithm, ISTHMUS_TWO_SHOT);
  ::setenv("ISTHMUS_DETERMINISTIC", "1", 1);
  const auto deterministic = make(2), deterministic_rounded = make(2, ISTHMUS_WIRE_BFLOAT16);
  ::unsetenv("ISTHMUS_DETERMINISTIC");
  for (const std::uint64_t count : {1u, 1u << 20}) {
    EXPECT_FALSE(run_call(deterministic, count).bfloat16_wire);
    EXPECT_TRUE(run_call(deterministic_rounded, count).bfloat16_wire);
  }
  for (const auto handle : {two, four, exact, exact_two, deterministic, deterministic_rounded})
    isthmus_tensor_parallel_destroy(handle);
  EXPECT_EQ(recorded.open, recorded.closed);
}

TEST(tensor_parallel_engine, follows_rule_for_two_shot_zero_copy) {
  const std::string path = testing::TempDir() + "/isthmus_direct_results.toml";
  std::ofstream(path) << "[[rule]]\ncollective = \"allreduce\"\nbytes = \"4M..\"\n"
                         "use = \"p2p:two_shot_zero_copy\"\n";
  const auto handle = make(2, ISTHMUS_WIRE_EXACT, path.c_str());
  ASSERT_NE(handle, nullptr) << last_error();
  float data[2];
  void* pointers[2] = {data, data};
  for (const std::uint64_t count : {(1u << 20) - 1, 1u << 20}) {
    ASSERT_EQ(isthmus_tensor_parallel_allreduce(handle, pointers, count, ISTHMUS_FLOAT32, ISTHMUS_ALL_ACTIVE),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(recorded.algorithm, count < 1u << 20 ? ISTHMUS_TWO_SHOT : ISTHMUS_TWO_SHOT_ZERO_COPY) << count;
  }
  isthmus_tensor_parallel_destroy(handle);
  (void)std::remove(path.c_str());
}

TEST(tensor_parallel_engine, errors_of_the_engine_are_reported) {
  EXPECT_EQ(make(13), nullptr);
  EXPECT_NE(last_error().find("unlucky"), std::string::npos);
  float data[2];
  void* pointers[2] = {data, data};
  const auto handle = make(2);
  recorded.answer = false;
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(handle, pointers, 1, ISTHMUS_FLOAT32, 3), ISTHMUS_ERROR_BACKEND);
  recorded.answer = true;
  EXPECT_EQ(isthmus_tensor_parallel_allreduce(handle, pointers, 1, ISTHMUS_INT32, 3),
            ISTHMUS_ERROR_INVALID_ARGUMENT)
      << "devices support only floating-point types";
  isthmus_tensor_parallel_destroy(handle);
}

}  // namespace
