// Tests libisthmus_ggml.so, preloaded, between a stand-in ggml and the functions that it interposes.
// test_llama.py and `make gpu-check ONLY=ggml` use the real ggml.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "frontends/ggml/standin/engine.hpp"
#include "frontends/ggml/standin/ggml.hpp"
#include "frontends/ggml/standin/runtime.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace {

using standin::kind;
using standin::recorded;

// The comm functions that ggml's meta backend would get for these backends, and a
// communicator created with them.
class ggml_comm : public testing::Test {
 protected:
  void SetUp() override { recorded() = {}; }
  void TearDown() override { finish(); }

  void begin(kind engine_kind, std::size_t n, bool has_allreduce = false) {
    backends = standin::make_backends(engine_kind, n, has_allreduce);
    begin(backends);
  }
  void begin(const std::vector<ggml_backend*>& new_backends) {
    backends = new_backends;
    functions = standin::look_up(standin::registry_of(backends[0]));
    ASSERT_NE(functions.init, nullptr) << "is libisthmus_ggml.so preloaded?";
    // A temporary array, like the one the meta backend passes.
    std::vector<ggml_backend*> temporary = backends;
    testing::internal::CaptureStderr();
    comm = functions.init(temporary.data(), temporary.size());
    log_text = testing::internal::GetCapturedStderr();
    temporary.assign(temporary.size(), nullptr);
  }
  void finish() {
    if (comm != nullptr) functions.free(comm);
    comm = nullptr;
  }

  // Sums random integers over the backends. Returns the number of wrong elements, or -1 for a refusal.
  std::int64_t sum(std::uint64_t seed, std::uint64_t count, std::uint64_t active) {
    const int n = static_cast<int>(backends.size());
    std::vector<std::vector<float>> data;
    std::vector<ggml_tensor*> tensors;
    for (int rank = 0; rank < n; ++rank) {
      data.push_back(shards::make(seed, rank, count, (active >> rank & 1u) != 0));
      tensors.push_back(standin::make_tensor(standin::type::f32, data.back().data(),
                                             static_cast<std::int64_t>(count), (active >> rank & 1u) != 0));
    }
    if (!functions.allreduce(comm, tensors.data())) return -1;
    std::uint64_t wrong = 0;
    for (const auto& each : data) wrong += shards::count_wrong(each, seed, n, active);
    return static_cast<std::int64_t>(wrong);
  }

  std::vector<ggml_backend*> backends;
  standin::comm_functions functions{};
  void* comm = nullptr;
  std::string log_text;
};

standin_engine_log& engine_log() {
  void* plugin = dlopen(STANDIN_ENGINE, RTLD_NOW);
  EXPECT_NE(plugin, nullptr) << dlerror();
  return *reinterpret_cast<standin_engine_log* (*)()>(dlsym(plugin, "standin_engine_opened"))();
}

TEST_F(ggml_comm, other_names_reach_the_backend) {
  backends = standin::make_backends(kind::cpu, 1, false);
  auto* registry = standin::registry_of(backends[0]);
  EXPECT_NE(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"), nullptr);
  EXPECT_EQ(ggml_backend_reg_get_proc_address(registry, "ggml_backend_comm"), nullptr);
}

// Like llama-cpp-python next to another program that contains ggml.
TEST_F(ggml_comm, each_copy_of_ggml_gets_its_own_functions) {
  Dl_info loaded{};
  ASSERT_NE(dladdr(dlsym(RTLD_NEXT, "standin_look_up"), &loaded), 0);
  const std::string copy = testing::TempDir() + "libggml-" + std::to_string(getpid()) + ".so";
  std::filesystem::copy_file(loaded.dli_fname, copy);
  void* const library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto look_up = reinterpret_cast<decltype(&standin_look_up)>(dlsym(library, "standin_look_up"));
  ASSERT_NE(look_up, &standin_look_up);
  Dl_info found{};
  ASSERT_NE(dladdr(look_up(nullptr, "ggml_backend_set_n_threads"), &found), 0);
  EXPECT_EQ(found.dli_fname, copy);
  ASSERT_NE(dladdr(standin_look_up(nullptr, "ggml_backend_set_n_threads"), &found), 0);
  EXPECT_STREQ(found.dli_fname, loaded.dli_fname);
  std::filesystem::remove(copy);
}

TEST_F(ggml_comm, isthmus_replaces_native_comm_functions) {
  backends = standin::make_backends(kind::cpu, 2, true);
  const auto found = standin::look_up(standin::registry_of(backends[0]));
  EXPECT_NE(found.init, standin::own_functions().init);
  EXPECT_NE(found.free, standin::own_functions().free);
  EXPECT_NE(found.allreduce, standin::own_functions().allreduce);
}

TEST_F(ggml_comm, host_memory_every_active_mask) {
  for (std::size_t n = 2; n <= 5; ++n) {
    begin(kind::cpu, n);
    ASSERT_NE(comm, nullptr) << log_text;
    for (std::uint64_t active = 0; active < std::uint64_t{1} << n; ++active)
      EXPECT_EQ(sum(active, 1000 + active, active), 0) << "n " << n << " active " << active;
    finish();
  }
  EXPECT_EQ(recorded().init, 0);
}

TEST_F(ggml_comm, host_memory_sizes) {
  begin(kind::cpu, 3);
  ASSERT_NE(comm, nullptr) << log_text;
  for (const std::uint64_t count : {0u, 1u, 2u, 32767u, 32768u, 32769u, 1100000u, 5u})
    EXPECT_EQ(sum(count, count, 7), 0) << count;
}

// The backends may still be computing when the sum is requested.
TEST_F(ggml_comm, host_memory_waits_for_every_backend) {
  begin(kind::cpu, 4);
  ASSERT_NE(comm, nullptr);
  const int before = recorded().synchronized;
  EXPECT_EQ(sum(3, 10, 15), 0);
  EXPECT_EQ(recorded().synchronized - before, 4);
}

TEST_F(ggml_comm, sixteen_bit_types) {
  begin(kind::cpu, 2);
  ASSERT_NE(comm, nullptr);
  // 1.5 + 2.25 = 3.75 in both types.
  std::uint16_t half[2] = {0x3e00, 0x4080}, bfloat16_data[2] = {0x3fc0, 0x4010};
  ggml_tensor* half_tensors[] = {standin::make_tensor(standin::type::f16, &half[0], 1, true),
                                 standin::make_tensor(standin::type::f16, &half[1], 1, true)};
  ggml_tensor* bfloat16_tensors[] = {standin::make_tensor(standin::type::bf16, &bfloat16_data[0], 1, true),
                                     standin::make_tensor(standin::type::bf16, &bfloat16_data[1], 1, true)};
  EXPECT_TRUE(functions.allreduce(comm, half_tensors));
  EXPECT_TRUE(functions.allreduce(comm, bfloat16_tensors));
  EXPECT_EQ(half[0], 0x4380);
  EXPECT_EQ(half[1], 0x4380);
  EXPECT_EQ(bfloat16_data[0], 0x4070);
  EXPECT_EQ(bfloat16_data[1], 0x4070);
}

TEST_F(ggml_comm, unsupported_tensors_are_left_unchanged) {
  begin(kind::cpu, 2);
  ASSERT_NE(comm, nullptr);
  const std::vector<float> before = {1, 2, 3, 4};
  std::vector<float> a = before, b = before;
  const auto refused = [&](ggml_tensor* first, ggml_tensor* second) {
    ggml_tensor* tensors[] = {first, second};
    testing::internal::CaptureStderr();
    const bool done = functions.allreduce(comm, tensors);
    log_text = testing::internal::GetCapturedStderr();
    return !done && a == before && b == before;
  };
  const auto make = [](standin::type datatype, std::vector<float>& data, std::int64_t count,
                       bool contiguous = true) {
    return standin::make_tensor(datatype, data.data(), count, true, contiguous);
  };
  EXPECT_TRUE(refused(make(standin::type::i32, a, 4), make(standin::type::i32, b, 4)));
  EXPECT_NE(log_text.find("f32"), std::string::npos) << log_text;
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f16, b, 4)));
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 3)));
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 4, false)));
  EXPECT_NE(log_text.find("contiguous"), std::string::npos) << log_text;
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 4, false)));
  EXPECT_EQ(log_text, "") << "the same reason must be printed only once";
}

TEST_F(ggml_comm, cuda_streams_and_devices_reach_the_engine) {
  standin_engine_log& log = engine_log();
  log = {};
  const int arrived = standin::count_of_records();
  begin(kind::cuda, 3, true);
  ASSERT_NE(comm, nullptr) << log_text;
  EXPECT_NE(log_text.find("CUDA0, CUDA1, CUDA2"), std::string::npos) << log_text;
  ASSERT_EQ(log.streams.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(log.streams[i], standin::stream_of(backends[i]));
    EXPECT_EQ(log.devices[i].platform, ISTHMUS_PLATFORM_CUDA);
    EXPECT_EQ(log.devices[i].ordinal, standin::ordinal_of(backends[i]));
  }
  EXPECT_GT(standin::count_of_records(), arrived) << "the runtime's own function was not called";
  EXPECT_EQ(recorded().events, recorded().events_freed);
  EXPECT_EQ(sum(9, 777, 0b101), 0);
  EXPECT_EQ(log.calls, 1);
  EXPECT_FALSE(log.bfloat16_wire);
  EXPECT_EQ(recorded().synchronized, 0) << "the host must not wait";
  log.fails = true;
  EXPECT_EQ(sum(9, 777, 7), -1) << "ggml must compute what the engine does not enqueue";
  finish();
  EXPECT_EQ(log.closed, 1);
  EXPECT_EQ(recorded().init + recorded().allreduce + recorded().free, 0) << "ggml's own was used";
}

TEST_F(ggml_comm, large_tensors_use_the_bfloat16_wire_by_rule) {
  standin_engine_log& log = engine_log();
  log = {};
  begin(kind::cuda, 2);
  ASSERT_NE(comm, nullptr) << log_text;
  EXPECT_EQ(sum(1, 32767, 3), 0);
  EXPECT_FALSE(log.bfloat16_wire);
  EXPECT_EQ(sum(1, 32768, 3), 0);
  EXPECT_TRUE(log.bfloat16_wire);
  finish();
  setenv("ISTHMUS_GGML_WIRE", "exact", 1);
  begin(backends);
  EXPECT_EQ(sum(1, 1 << 20, 3), 0);
  EXPECT_FALSE(log.bfloat16_wire);
  finish();
  setenv("ISTHMUS_GGML_WIRE", "fine", 1);
  begin(backends);
  EXPECT_NE(log_text.find("ISTHMUS_GGML_WIRE=fine"), std::string::npos) << log_text;
  unsetenv("ISTHMUS_GGML_WIRE");
}

// Backends whose stream cannot be determined use ggml's own allreduce.
struct stream_case {
  kind engine_kind;
  const char* reason;
};
class ggml_comm_without_stream : public ggml_comm, public testing::WithParamInterface<stream_case> {};

TEST_P(ggml_comm_without_stream, falls_back_to_native_allreduce) {
  begin(GetParam().engine_kind, 2, true);
  ASSERT_NE(comm, nullptr);
  EXPECT_NE(log_text.find(GetParam().reason), std::string::npos) << log_text;
  EXPECT_EQ(recorded().init, 1);
  EXPECT_EQ(recorded().backends, backends);
  EXPECT_NE(sum(1, 10, 3), -1);
  EXPECT_EQ(recorded().allreduce, 1);
  finish();
  EXPECT_EQ(recorded().free, 1);
}

TEST_P(ggml_comm_without_stream, returns_null_without_native_allreduce) {
  begin(GetParam().engine_kind, 2, false);
  EXPECT_EQ(comm, nullptr);
}

INSTANTIATE_TEST_SUITE_P(all, ggml_comm_without_stream,
                         testing::Values(stream_case{kind::vulkan, "Vulkan"},
                                         stream_case{kind::cuda_static, "statically"},
                                         stream_case{kind::cuda_no_events, "without events"},
                                         stream_case{kind::cuda_restless, "changes streams"}));

TEST_F(ggml_comm, mixed_backends_are_refused) {
  auto mixed = standin::make_backends(kind::cuda, 1, false);
  mixed.push_back(standin::make_backends(kind::cpu, 1, false)[0]);
  begin(mixed);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(log_text.find("different ggml backends"), std::string::npos) << log_text;
}

TEST_F(ggml_comm, too_many_devices_are_refused) {
  begin(kind::cpu, 17);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(log_text.find("17"), std::string::npos) << log_text;
}

// Runs in separate processes; STANDIN_GGML selects how ggml deviates.
TEST(ggml_odd, unknown_ggml_is_not_used) {
  if (std::getenv("STANDIN_GGML") == nullptr) GTEST_SKIP() << "ggml has no deviation in this process";
  const auto backends = standin::make_backends(kind::cpu, 2, true);
  testing::internal::CaptureStderr();
  const auto found = standin::look_up(standin::registry_of(backends[0]));
  const std::string log_text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(found.init, standin::own_functions().init);
  EXPECT_EQ(found.free, standin::own_functions().free);
  EXPECT_EQ(found.allreduce, standin::own_functions().allreduce);
  EXPECT_NE(log_text.find("is not used"), std::string::npos) << log_text;
  EXPECT_EQ(log_text.find('\n'), log_text.size() - 1) << "one line";
}

}  // namespace
