// Behavior of UCX on devices that only stand-ins can show: the memory that UCX gets, waiting for streams, and
// the errors of a UCX without device support.
#include <cuda_runtime_api.h>
#include <isthmus/tools.h>

#include <chrono>
#include <thread>

#include "run_cases.hpp"
#include "standins/standin.h"
#include "standins/ucp.h"

namespace {

using hierarchical_test::device_memory;
using hierarchical_test::run_on_nodes;
using hierarchical_test::test_rank;

hierarchical_test::run_settings over_ucx() {
  hierarchical_test::run_settings settings;
  settings.platforms.assign(2, ISTHMUS_PLATFORM_CUDA);
  settings.config = "[[rule]]\nplatform = \"cuda\"\nuse = \"ucx\"\n";
  return settings;
}

class ucx_streams : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TEST_UCX_DEVICES") == nullptr) GTEST_SKIP() << "needs UCX: apt-get install libucx-dev";
  }
};

standin_ucp_counters take_counters() {
  void* const library = dlopen(std::getenv("ISTHMUS_UCX_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto take = reinterpret_cast<standin_ucp_counters (*)()>(dlsym(library, "standin_ucp_take_counters"));
  const standin_ucp_counters counters = take();
  dlclose(library);
  return counters;
}

// Nothing is staged: UCX gets the caller's memory.
TEST_F(ucx_streams, device_memory_is_passed_to_ucx_directly) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    constexpr std::size_t bytes = 1 << 20;
    device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
    take_counters();
    EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    const standin_ucp_counters counters = take_counters();
    EXPECT_EQ(counters.sent_bytes, bytes);
    EXPECT_EQ(counters.received_bytes, bytes);
  });
}

// A rank on a device may also pass host memory.
TEST_F(ucx_streams, host_and_device_memory_can_be_mixed) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    std::vector<float> values(1000, self.number == 0 ? 3.0F : 0.0F);
    device_memory device_buffer(ISTHMUS_PLATFORM_CUDA, 4000);
    void* const data = self.number == 0 ? static_cast<void*>(values.data()) : device_buffer.at(0);
    EXPECT_EQ(isthmus_broadcast(data, data, 1000, ISTHMUS_FLOAT32, 0, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    if (self.number == 1) device_buffer.get(values.data());
    EXPECT_EQ(values[999], 3);
  });
}

TEST_F(ucx_streams, earlier_work_is_waited_for) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    float value = 0;
    memory.put(&value);
    const auto delayed_write = [](void* to) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      *static_cast<float*>(to) = 2;
    };
    if (self.number == 0) standin_stream_submit(stream, delayed_write, memory.at(0));
    EXPECT_EQ(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, self.communicator, stream),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    memory.get(&value);
    EXPECT_EQ(value, 2);
    cudaStreamDestroy(stream);
  });
}

TEST_F(ucx_streams, capture_fails_on_all_ranks) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (self.number == 0) standin_set_capturing(stream, 1);
    EXPECT_NE(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, self.communicator, stream),
              ISTHMUS_SUCCESS);
    EXPECT_NE(std::string(topology::last_error().message).find("ucx cannot be captured"), std::string::npos)
        << topology::last_error().message;
    if (self.number == 0) standin_set_capturing(stream, 0);
  });
}

TEST_F(ucx_streams, hip_memory_is_supported) {
  auto settings = over_ucx();
  settings.platforms.assign(3, ISTHMUS_PLATFORM_HIP);
  settings.config =
      "[[rule]]\nplatform = \"hip\"\nuse = \"hierarchical\"\n[[rule]]\nplatform = \"hip\"\nuse = \"ucx\"\n";
  settings.prepare = [](int) { setenv("ISTHMUS_RCCL_LIBRARY", "/nowhere/librccl.so", 1); };
  run_on_nodes({"a", "b", "c"}, settings, [](const test_rank& self) {
    hierarchical_test::run_all_cases(self, ISTHMUS_PLATFORM_HIP);
    EXPECT_EQ(hierarchical_test::explain_call(self, ISTHMUS_ALLGATHER).at("backend"), "ucx");
  });
}

// Each communicator has its own UCX context with its own settings.
TEST_F(ucx_streams, second_communicator_disables_ucx_caches) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    isthmus_communicator second = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, 0, 0, &second), ISTHMUS_SUCCESS)
        << topology::last_error().message;
    constexpr std::size_t bytes = 1000;
    for (isthmus_communicator communicator : {self.communicator, second}) {
      device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
      EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, communicator, nullptr),
                ISTHMUS_SUCCESS)
          << topology::last_error().message;
    }
    EXPECT_EQ(take_counters().cache_settings, 4U);
    isthmus_communicator_destroy(second);
  });
}

TEST_F(ucx_streams, user_setting_of_a_cache_is_kept) {
  auto settings = over_ucx();
  settings.prepare = [](int) { setenv("UCX_RCACHE_ENABLE", "n", 1); };
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    EXPECT_EQ(take_counters().cache_settings, 1U) << "only the other cache is disabled";
  });
}

TEST_F(ucx_streams, host_ranks_keep_the_ucx_caches) {
  auto settings = over_ucx();
  settings.platforms.clear();
  settings.config = "[[rule]]\nuse = \"ucx\"\n";
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    float value = 1;
    EXPECT_EQ(isthmus_broadcast(&value, &value, 1, ISTHMUS_FLOAT32, 0, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    EXPECT_EQ(take_counters().cache_settings, 0U);
  });
}

// UCX 1.12 cannot disable its registration cache.
TEST_F(ucx_streams, ucx_1_12_is_refused_for_devices) {
  auto settings = over_ucx();
  settings.prepare = [](int) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    setenv("STANDIN_UCP_MINOR", "12", 1);
  };
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(self.failure.message).find("version 1.13 or newer is needed"), std::string::npos)
        << self.failure.message;
  });
}

TEST_F(ucx_streams, ucx_without_device_support_fails_on_all_ranks) {
  auto settings = over_ucx();
  settings.prepare = [](int rank) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    if (rank == 1) setenv("STANDIN_UCP_HOST_ONLY", "1", 1);
  };
  settings.config +=
      "[backend.hierarchical]\ninter_node = \"ucx\"\n[[rule]]\ncollective = \"allreduce\"\nuse = "
      "\"hierarchical\"\n";
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    const std::string info =
        hierarchical_test::text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
          return isthmus_communicator_info(self.communicator, text, capacity, required_bytes);
        });
    EXPECT_NE(info.find("cannot access cuda memory on this machine"), std::string::npos) << info;
  });
}

}  // namespace
