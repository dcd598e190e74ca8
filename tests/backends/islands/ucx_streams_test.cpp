// What only stand-ins show of UCX on devices: which memory it is handed, which streams it waits for, and that a
// UCX without devices is said to be one.
#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "play.hpp"
#include "standins/standin.h"
#include "standins/ucp.h"

namespace {

using hierarchical_test::device_memory;
using hierarchical_test::on_nodes;
using hierarchical_test::rank;

hierarchical_test::setting over_ucx() {
  hierarchical_test::setting with;
  with.platforms.assign(2, ISTHMUS_PLATFORM_CUDA);
  with.config = "[[rule]]\nplatform = \"cuda\"\nuse = \"ucx\"\n";
  return with;
}

class ucx_streams : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TEST_UCX_DEVICES") == nullptr)
      GTEST_SKIP() << "there is no UCX here: apt-get install libucx-dev";
  }
};

standin_ucp_tally take_tally() {
  void* const library = dlopen(std::getenv("ISTHMUS_UCX_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto take = reinterpret_cast<standin_ucp_tally (*)()>(dlsym(library, "standin_ucp_take_tally"));
  const standin_ucp_tally tally = take();
  dlclose(library);
  return tally;
}

// Nothing is staged: the caller's own memory is what UCX gets.
TEST_F(ucx_streams, memory_of_devices_is_moved_where_it_is) {
  on_nodes({"a", "b"}, over_ucx(), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    constexpr std::size_t bytes = 1 << 20;
    device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
    take_tally();
    EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, own.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    const standin_ucp_tally tally = take_tally();
    EXPECT_EQ(tally.sent_bytes, bytes);
    EXPECT_EQ(tally.received_bytes, bytes);
  });
}

// Also memory of the host is allowed.
TEST_F(ucx_streams, memory_of_the_host_goes_to_devices) {
  on_nodes({"a", "b"}, over_ucx(), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    std::vector<float> values(1000, own.number == 0 ? 3.0F : 0.0F);
    device_memory there(ISTHMUS_PLATFORM_CUDA, 4000);
    void* const data = own.number == 0 ? static_cast<void*>(values.data()) : there.at(0);
    EXPECT_EQ(isthmus_broadcast(data, data, 1000, ISTHMUS_FLOAT32, 0, own.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    if (own.number == 1) there.get(values.data());
    EXPECT_EQ(values[999], 3);
  });
}

TEST_F(ucx_streams, are_waited_for) {
  on_nodes({"a", "b"}, over_ucx(), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    float value = 0;
    memory.put(&value);
    const auto late = [](void* to) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      *static_cast<float*>(to) = 2;
    };
    if (own.number == 0) standin_stream_submit(stream, late, memory.at(0));
    EXPECT_EQ(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, own.communicator, stream),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    memory.get(&value);
    EXPECT_EQ(value, 2);
    cudaStreamDestroy(stream);
  });
}

TEST_F(ucx_streams, that_are_captured_are_refused_and_all_ranks_hear_of_it) {
  on_nodes({"a", "b"}, over_ucx(), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    device_memory memory(ISTHMUS_PLATFORM_CUDA, sizeof(float));
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (own.number == 0) standin_set_capturing(stream, 1);
    EXPECT_NE(isthmus_broadcast(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, 0, own.communicator, stream),
              ISTHMUS_SUCCESS);
    EXPECT_NE(std::string(topology::last_error().message).find("ucx can't be captured"), std::string::npos)
        << topology::last_error().message;
    if (own.number == 0) standin_set_capturing(stream, 0);
  });
}

TEST_F(ucx_streams, and_memory_of_hip_are_served_alike) {
  auto with = over_ucx();
  with.platforms.assign(3, ISTHMUS_PLATFORM_HIP);
  with.config =
      "[[rule]]\nplatform = \"hip\"\nuse = \"hierarchical\"\n[[rule]]\nplatform = \"hip\"\nuse = \"ucx\"\n";
  with.prepare = [](int) { setenv("ISTHMUS_RCCL_LIBRARY", "/nowhere/librccl.so", 1); };
  on_nodes({"a", "b", "c"}, with, [](const rank& own) {
    hierarchical_test::play_all(own, ISTHMUS_PLATFORM_HIP);
    EXPECT_EQ(hierarchical_test::explained(own, ISTHMUS_ALLGATHER).at("backend"), "ucx");
  });
}

// Each session asks for itself: what one of devices has set is no other's.
TEST_F(ucx_streams, of_a_second_communicator_have_no_caches_of_ucx_either) {
  on_nodes({"a", "b"}, over_ucx(), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    isthmus_communicator second = nullptr;
    ASSERT_EQ(isthmus_communicator_split(own.communicator, 0, 0, &second), ISTHMUS_SUCCESS)
        << topology::last_error().message;
    constexpr std::size_t bytes = 1000;
    for (isthmus_communicator by : {own.communicator, second}) {
      device_memory send(ISTHMUS_PLATFORM_CUDA, bytes), recv(ISTHMUS_PLATFORM_CUDA, 2 * bytes);
      EXPECT_EQ(isthmus_allgather(send.at(0), recv.at(0), bytes, ISTHMUS_UINT8, by, nullptr), ISTHMUS_SUCCESS)
          << topology::last_error().message;
    }
    EXPECT_EQ(take_tally().cache_settings, 4U);
    isthmus_communicator_destroy(second);
  });
}

TEST_F(ucx_streams, leave_a_cache_that_the_user_has_set) {
  auto with = over_ucx();
  with.prepare = [](int) { setenv("UCX_RCACHE_ENABLE", "n", 1); };
  on_nodes({"a", "b"}, with, [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    EXPECT_EQ(take_tally().cache_settings, 1U) << "the other one";
  });
}

TEST_F(ucx_streams, are_none_on_hosts_whose_ucx_keeps_its_caches) {
  auto with = over_ucx();
  with.platforms.clear();
  with.config = "[[rule]]\nuse = \"ucx\"\n";
  on_nodes({"a", "b"}, with, [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    float value = 1;
    EXPECT_EQ(isthmus_broadcast(&value, &value, 1, ISTHMUS_FLOAT32, 0, own.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    EXPECT_EQ(take_tally().cache_settings, 0U);
  });
}

// Its cache of registrations is there whatever is asked for.
TEST_F(ucx_streams, need_a_ucx_that_can_do_without_its_caches) {
  auto with = over_ucx();
  with.prepare = [](int) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    setenv("STANDIN_UCP_MINOR", "12", 1);
  };
  on_nodes({"a", "b"}, with, [](const rank& own) {
    EXPECT_EQ(own.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(own.failure.message).find("1.13 or a newer one is needed"), std::string::npos)
        << own.failure.message;
  });
}

TEST_F(ucx_streams, a_ucx_without_devices_on_one_rank_is_told_to_all) {
  auto with = over_ucx();
  with.prepare = [](int rank) {
    setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    if (rank == 1) setenv("STANDIN_UCP_HOST_ONLY", "1", 1);
  };
  with.config +=
      "[backend.hierarchical]\ninter_node = \"ucx\"\n[[rule]]\ncollective = \"allreduce\"\nuse = \"hierarchical\"\n";
  on_nodes({"a", "b"}, with, [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    const std::string info = hierarchical_test::text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
      return isthmus_communicator_info(own.communicator, text, capacity, required_bytes);
    });
    EXPECT_NE(info.find("reaches no cuda memory here"), std::string::npos) << info;
  });
}

}  // namespace
