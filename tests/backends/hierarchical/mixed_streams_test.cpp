// Ordering of the hierarchical backend with device streams, on stand-ins.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device_memory.hpp"
#include "standins/standin.h"

namespace {

using hierarchical_test::device_memory;
using hierarchical_test::run_on_nodes;
using hierarchical_test::settings_for_devices;
using hierarchical_test::test_rank;

// A call starts after the earlier work of its stream.
TEST(stream, earlier_work_is_waited_for) {
  run_on_nodes({"a", "a"}, settings_for_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST}),
               [](const test_rank& self) {
                 const bool on_device = self.number == 0;
                 cudaStream_t stream = nullptr;
                 if (on_device) {
                   ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
                 }
                 device_memory memory(on_device ? ISTHMUS_PLATFORM_CUDA : ISTHMUS_PLATFORM_HOST, sizeof(float));
                 float value = 0;
                 memory.put(&value);
                 const auto delayed_write = [](void* to) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(50));
                   *static_cast<float*>(to) = 2;
                 };
                 if (on_device)
                   standin_stream_submit(stream, delayed_write, memory.at(0));
                 else
                   delayed_write(memory.at(0));
                 EXPECT_EQ(isthmus_allreduce(memory.at(0), memory.at(0), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                             self.communicator, stream),
                           ISTHMUS_SUCCESS)
                     << topology::last_error().message;
                 memory.get(&value);
                 EXPECT_EQ(value, 4);
                 if (on_device) cudaStreamDestroy(stream);
               });
}

TEST(stream, capture_fails_on_all_ranks) {
  run_on_nodes(
      {"a", "a"}, settings_for_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST}),
      [](const test_rank& self) {
        float value = 0;
        cudaStream_t stream = nullptr;
        if (self.number == 0) {
          ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
          standin_set_capturing(stream, 1);
        }
        EXPECT_NE(isthmus_allreduce(&value, &value, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, stream),
                  ISTHMUS_SUCCESS);
        EXPECT_NE(std::string(topology::last_error().message).find("cannot be captured"), std::string::npos)
            << topology::last_error().message;
        if (self.number == 0) standin_set_capturing(stream, 0);
      });
}

// Earlier work of a stream may take long; an abort ends the wait for it.
TEST(stream, abort_ends_the_wait) {
  run_on_nodes(
      {"a", "a"}, settings_for_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST}),
      [](const test_rank& self) {
        static std::atomic<bool> is_blocked{true};
        float value = 0;
        cudaStream_t stream = nullptr;
        if (self.number == 0) {
          ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
          standin_stream_submit(
              stream,
              [](void*) {
                while (is_blocked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              },
              nullptr);
        }
        std::jthread aborter;
        if (self.number == 0)
          aborter = std::jthread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            isthmus_communicator_abort(self.communicator);
          });
        EXPECT_EQ(isthmus_allreduce(&value, &value, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, stream),
                  ISTHMUS_ERROR_ABORTED);
        is_blocked = false;
        if (self.number == 0) cudaStreamSynchronize(stream);
      });
}

}  // namespace
