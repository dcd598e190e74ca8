// What only stand-ins show of UCX on devices: which memory it is handed, which streams it waits for, and that a
// UCX without devices is said to be one.
#include <cuda_runtime_api.h>

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
    if (std::getenv("TEST_UCX_DEVICES") == nullptr)
      GTEST_SKIP() << "there is no UCX here: apt-get install libucx-dev";
  }
};

standin_ucp_tally take_statistics() {
  void* const library = dlopen(std::getenv("ISTHMUS_UCX_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto take = reinterpret_cast<standin_ucp_tally (*)()>(dlsym(library, "standin_ucp_take_tally"));
  const standin_ucp_tally statistics = take();
  dlclose(library);
  return statistics;
}

// Nothing is staged: the caller's own memory is what UCX gets.
TEST_F(ucx_streams, memory_of_devices_is_moved_where_it_is) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    constexpr std::size_t bytes = 1 << 20;
    device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
    take_statistics();
    EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    const standin_ucp_tally statistics = take_statistics();
    EXPECT_EQ(statistics.sent_bytes, bytes);
    EXPECT_EQ(statistics.received_bytes, bytes);
  });
}

// Also memory of the host is allowed.
TEST_F(ucx_streams, memory_of_the_host_goes_to_devices) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    std::vector<float> values(1000, self.number == 0 ? 3.0F : 0.0F);
    device_memory there(ISTHMUS_PLATFORM_CUDA, 4000);
    void* const data = self.number == 0 ? static_cast<void*>(values.data()) : there.at(0);
    EXPECT_EQ(isthmus_broadcast(data, data, 1000, ISTHMUS_FLOAT32, 0, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    if (self.number == 1) there.get(values.data());
    EXPECT_EQ(values[999], 3);
  });
}

TEST_F(ucx_streams, are_waited_for) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    float value = 0;
    memory.put(&value);
    const auto late = [](void* to) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      *static_cast<float*>(to) = 2;
    };
    if (self.number == 0) standin_stream_submit(stream, late, memory.at(0));
    EXPECT_EQ(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, self.communicator, stream),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    memory.get(&value);
    EXPECT_EQ(value, 2);
    cudaStreamDestroy(stream);
  });
}

TEST_F(ucx_streams, that_are_captured_are_refused_and_all_ranks_hear_of_it) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (self.number == 0) standin_set_capturing(stream, 1);
    EXPECT_NE(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, self.communicator, stream),
              ISTHMUS_SUCCESS);
    EXPECT_NE(std::string(topology::last_error().message).find("ucx can't be captured"), std::string::npos)
        << topology::last_error().message;
    if (self.number == 0) standin_set_capturing(stream, 0);
  });
}

TEST_F(ucx_streams, and_memory_of_hip_are_served_alike) {
  auto settings = over_ucx();
  settings.platforms.assign(3, ISTHMUS_PLATFORM_HIP);
  settings.config =
      "[[rule]]\nplatform = \"hip\"\nuse = \"hierarchical\"\n[[rule]]\nplatform = \"hip\"\nuse = \"ucx\"\n";
  settings.prepare = [](int) { setenv("ISTHMUS_RCCL_LIBRARY", "/nowhere/librccl.so", 1); };
  run_on_nodes({"a", "b", "c"}, settings, [](const test_rank& self) {
    hierarchical_test::run_all_cases(self, ISTHMUS_PLATFORM_HIP);
    EXPECT_EQ(hierarchical_test::explained(self, ISTHMUS_ALLGATHER).at("backend"), "ucx");
  });
}

// Each session asks for itself: what one of devices has set is no other's.
TEST_F(ucx_streams, of_a_second_communicator_have_no_caches_of_ucx_either) {
  run_on_nodes({"a", "b"}, over_ucx(), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    isthmus_communicator second = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, 0, 0, &second), ISTHMUS_SUCCESS)
        << topology::last_error().message;
    constexpr std::size_t bytes = 1000;
    for (isthmus_communicator by : {self.communicator, second}) {
      device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
      EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, by, nullptr), ISTHMUS_SUCCESS)
          << topology::last_error().message;
    }
    EXPECT_EQ(take_statistics().cache_settings, 4U);
    isthmus_communicator_destroy(second);
  });
}

TEST_F(ucx_streams, leave_a_cache_that_the_user_has_set) {
  auto settings = over_ucx();
  settings.prepare = [](int) { setenv("UCX_RCACHE_ENABLE", "n", 1); };
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    EXPECT_EQ(take_statistics().cache_settings, 1U) << "the other one";
  });
}

TEST_F(ucx_streams, are_none_on_hosts_whose_ucx_keeps_its_caches) {
  auto settings = over_ucx();
  settings.platforms.clear();
  settings.config = "[[rule]]\nuse = \"ucx\"\n";
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    float value = 1;
    EXPECT_EQ(isthmus_broadcast(&value, &value, 1, ISTHMUS_FLOAT32, 0, self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    EXPECT_EQ(take_statistics().cache_settings, 0U);
  });
}

// Its cache of registrations is there whatever is asked for.
TEST_F(ucx_streams, need_a_ucx_that_can_do_without_its_caches) {
  auto settings = over_ucx();
  settings.prepare = [](int) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    setenv("STANDIN_UCP_MINOR", "12", 1);
  };
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(self.failure.message).find("1.13 or a newer one is needed"), std::string::npos)
        << self.failure.message;
  });
}

TEST_F(ucx_streams, a_ucx_without_devices_on_one_rank_is_told_to_all) {
  auto settings = over_ucx();
  settings.prepare = [](int rank) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    if (rank == 1) setenv("STANDIN_UCP_HOST_ONLY", "1", 1);
  };
  settings.config +=
      "[backend.hierarchical]\ninter_node = \"ucx\"\n[[rule]]\ncollective = \"allreduce\"\nuse = \"hierarchical\"\n";
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    const std::string info = hierarchical_test::text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
      return isthmus_communicator_info(self.communicator, text, capacity, required_bytes);
    });
    EXPECT_NE(info.find("reaches no cuda memory here"), std::string::npos) << info;
  });
}

}  // namespace
