// libisthmus_ggml.so, preloaded, between a stand-in ggml and what it stands in front of. The real ggml is
// played by test_llama.py beside this file and by `make gpu-check ONLY=ggml`.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "frontends/ggml/standin/engine.hpp"
#include "frontends/ggml/standin/ggml.hpp"
#include "frontends/ggml/standin/runtime.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace {

using standin::kind;
using standin::recorded;

// The trio that ggml's meta backend would get for these backends, and a communicator from it.
class ggml_comm : public testing::Test {
 protected:
  void SetUp() override { recorded() = {}; }
  void TearDown() override { finish(); }

  void begin(kind what, std::size_t n, bool has_trio = false) {
    backends = standin::make_backends(what, n, has_trio);
    begin(backends);
  }
  void begin(const std::vector<ggml_backend*>& given) {
    backends = given;
    trio = standin::look_up(standin::registry_of(backends[0]));
    ASSERT_NE(trio.init, nullptr) << "is libisthmus_ggml.so preloaded?";
    // A temporary array, as the meta backend gives one.
    std::vector<ggml_backend*> temporary = backends;
    testing::internal::CaptureStderr();
    comm = trio.init(temporary.data(), temporary.size());
    said = testing::internal::GetCapturedStderr();
    temporary.assign(temporary.size(), nullptr);
  }
  void finish() {
    if (comm != nullptr) trio.free(comm);
    comm = nullptr;
  }

  // Sums random whole numbers over the backends; gives the number of wrong elements, -1 for a refusal.
  std::int64_t sum(std::uint64_t seed, std::uint64_t count, std::uint64_t active) {
    const int n = static_cast<int>(backends.size());
    std::vector<std::vector<float>> data;
    std::vector<ggml_tensor*> tensors;
    for (int rank = 0; rank < n; ++rank) {
      data.push_back(shards::make(seed, rank, count, (active >> rank & 1u) != 0));
      tensors.push_back(standin::make_tensor(standin::type::f32, data.back().data(),
                                             static_cast<std::int64_t>(count), (active >> rank & 1u) != 0));
    }
    if (!trio.allreduce(comm, tensors.data())) return -1;
    std::uint64_t wrong = 0;
    for (const auto& each : data) wrong += shards::count_wrong(each, seed, n, active);
    return static_cast<std::int64_t>(wrong);
  }

  std::vector<ggml_backend*> backends;
  standin::trio trio{};
  void* comm = nullptr;
  std::string said;
};

standin_engine_log& engine_log() {
  void* plugin = dlopen(STANDIN_ENGINE, RTLD_NOW);
  EXPECT_NE(plugin, nullptr) << dlerror();
  return *reinterpret_cast<standin_engine_log* (*)()>(dlsym(plugin, "standin_engine_opened"))();
}

TEST_F(ggml_comm, other_names_are_answered_by_the_backend_itself) {
  backends = standin::make_backends(kind::cpu, 1, false);
  auto* registry = standin::registry_of(backends[0]);
  EXPECT_NE(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"), nullptr);
  EXPECT_EQ(ggml_backend_reg_get_proc_address(registry, "ggml_backend_comm"), nullptr);
}

TEST_F(ggml_comm, the_trio_is_ours_also_where_a_backend_has_one) {
  backends = standin::make_backends(kind::cpu, 2, true);
  const auto found = standin::look_up(standin::registry_of(backends[0]));
  EXPECT_NE(found.init, standin::own_trio().init);
  EXPECT_NE(found.free, standin::own_trio().free);
  EXPECT_NE(found.allreduce, standin::own_trio().allreduce);
}

TEST_F(ggml_comm, host_memory_every_active_mask) {
  for (std::size_t n = 2; n <= 5; ++n) {
    begin(kind::cpu, n);
    ASSERT_NE(comm, nullptr) << said;
    for (std::uint64_t active = 0; active < std::uint64_t{1} << n; ++active)
      EXPECT_EQ(sum(active, 1000 + active, active), 0) << "n " << n << " active " << active;
    finish();
  }
  EXPECT_EQ(recorded().init, 0);
}

TEST_F(ggml_comm, host_memory_sizes) {
  begin(kind::cpu, 3);
  ASSERT_NE(comm, nullptr) << said;
  for (const std::uint64_t count : {0u, 1u, 2u, 32767u, 32768u, 32769u, 1100000u, 5u})
    EXPECT_EQ(sum(count, count, 7), 0) << count;
}

// The backends may still compute when the sum is asked for.
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
  std::uint16_t half[2] = {0x3e00, 0x4080}, brain[2] = {0x3fc0, 0x4010};
  ggml_tensor* halves[] = {standin::make_tensor(standin::type::f16, &half[0], 1, true),
                           standin::make_tensor(standin::type::f16, &half[1], 1, true)};
  ggml_tensor* brains[] = {standin::make_tensor(standin::type::bf16, &brain[0], 1, true),
                           standin::make_tensor(standin::type::bf16, &brain[1], 1, true)};
  EXPECT_TRUE(trio.allreduce(comm, halves));
  EXPECT_TRUE(trio.allreduce(comm, brains));
  EXPECT_EQ(half[0], 0x4380);
  EXPECT_EQ(half[1], 0x4380);
  EXPECT_EQ(brain[0], 0x4070);
  EXPECT_EQ(brain[1], 0x4070);
}

TEST_F(ggml_comm, what_cannot_be_summed_is_left_alone) {
  begin(kind::cpu, 2);
  ASSERT_NE(comm, nullptr);
  const std::vector<float> before = {1, 2, 3, 4};
  std::vector<float> a = before, b = before;
  const auto refused = [&](ggml_tensor* first, ggml_tensor* second) {
    ggml_tensor* tensors[] = {first, second};
    testing::internal::CaptureStderr();
    const bool done = trio.allreduce(comm, tensors);
    said = testing::internal::GetCapturedStderr();
    return !done && a == before && b == before;
  };
  const auto make = [](standin::type what, std::vector<float>& data, std::int64_t count,
                       bool contiguous = true) {
    return standin::make_tensor(what, data.data(), count, true, contiguous);
  };
  EXPECT_TRUE(refused(make(standin::type::i32, a, 4), make(standin::type::i32, b, 4)));
  EXPECT_NE(said.find("f32"), std::string::npos) << said;
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f16, b, 4)));
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 3)));
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 4, false)));
  EXPECT_NE(said.find("contiguous"), std::string::npos) << said;
  EXPECT_TRUE(refused(make(standin::type::f32, a, 4), make(standin::type::f32, b, 4, false)));
  EXPECT_EQ(said, "") << "the same reason is given once";
}

TEST_F(ggml_comm, cuda_streams_and_devices_reach_the_engine) {
  standin_engine_log& log = engine_log();
  log = {};
  const int arrived = standin::count_of_records();
  begin(kind::cuda, 3, true);
  ASSERT_NE(comm, nullptr) << said;
  EXPECT_NE(said.find("CUDA0, CUDA1, CUDA2"), std::string::npos) << said;
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
  EXPECT_EQ(sum(9, 777, 7), -1) << "what the engine does not enqueue is left to ggml";
  finish();
  EXPECT_EQ(log.closed, 1);
  EXPECT_EQ(recorded().init + recorded().allreduce + recorded().free, 0) << "ggml's own was used";
}

TEST_F(ggml_comm, large_tensors_go_over_a_narrow_wire_by_rule_only) {
  standin_engine_log& log = engine_log();
  log = {};
  begin(kind::cuda, 2);
  ASSERT_NE(comm, nullptr) << said;
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
  EXPECT_NE(said.find("ISTHMUS_GGML_WIRE=fine"), std::string::npos) << said;
  unsetenv("ISTHMUS_GGML_WIRE");
}

// Backends whose stream can't be learned keep what ggml has for them.
struct unknown_case {
  kind what;
  const char* reason;
};
class ggml_comm_unknown : public ggml_comm, public testing::WithParamInterface<unknown_case> {};

TEST_P(ggml_comm_unknown, keeps_the_allreduce_of_its_own) {
  begin(GetParam().what, 2, true);
  ASSERT_NE(comm, nullptr);
  EXPECT_NE(said.find(GetParam().reason), std::string::npos) << said;
  EXPECT_EQ(recorded().init, 1);
  EXPECT_EQ(recorded().backends, backends);
  EXPECT_NE(sum(1, 10, 3), -1);
  EXPECT_EQ(recorded().allreduce, 1);
  finish();
  EXPECT_EQ(recorded().free, 1);
}

TEST_P(ggml_comm_unknown, gives_null_where_there_is_none) {
  begin(GetParam().what, 2, false);
  EXPECT_EQ(comm, nullptr);
}

INSTANTIATE_TEST_SUITE_P(all, ggml_comm_unknown,
                         testing::Values(unknown_case{kind::vulkan, "Vulkan"},
                                         unknown_case{kind::cuda_static, "statically"},
                                         unknown_case{kind::cuda_no_events, "without events"},
                                         unknown_case{kind::cuda_restless, "changes streams"}));

TEST_F(ggml_comm, devices_of_several_backends_are_refused) {
  auto mixed = standin::make_backends(kind::cuda, 1, false);
  mixed.push_back(standin::make_backends(kind::cpu, 1, false)[0]);
  begin(mixed);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(said.find("different ggml backends"), std::string::npos) << said;
}

TEST_F(ggml_comm, more_devices_than_the_core_takes_are_refused) {
  begin(kind::cpu, 17);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(said.find("17"), std::string::npos) << said;
}

// Runs in processes of its own, in each of which STANDIN_GGML names what is odd about ggml.
TEST(ggml_odd, is_left_alone) {
  if (std::getenv("STANDIN_GGML") == nullptr) GTEST_SKIP() << "ggml is as it should be in this process";
  const auto backends = standin::make_backends(kind::cpu, 2, true);
  testing::internal::CaptureStderr();
  const auto found = standin::look_up(standin::registry_of(backends[0]));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(found.init, standin::own_trio().init);
  EXPECT_EQ(found.free, standin::own_trio().free);
  EXPECT_EQ(found.allreduce, standin::own_trio().allreduce);
  EXPECT_NE(said.find("left alone"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "one line";
}

}  // namespace
