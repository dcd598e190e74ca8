// Tests that calls do not block the host, are ordered by streams and can be captured into graphs.
// Real devices only.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <stdexcept>
#include <string>
#include <thread>

#include "scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using gpu::test_ranks;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

__device__ unsigned long long now_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Writes its values after `delay_ns`.
__global__ void late_producer(float* data, std::size_t count, float value, unsigned long long delay_ns) {
  const unsigned long long start = now_ns();
  while (now_ns() - start < delay_ns) __nanosleep(1000);
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    data[i] = value;
}

// Counts the elements that are not `expected`.
__global__ void consumer(const float* data, std::size_t count, float expected, int* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    if (data[i] != expected) atomicAdd(wrong, 1);
}

cudaStream_t stream_of(const member& self) { return static_cast<cudaStream_t>(self.queue->native()); }

TEST(asynchrony, call_does_not_wait_for_its_producer) {
  constexpr std::size_t count = 1 << 20;
  constexpr auto delay = std::chrono::milliseconds(200);
  const int size = test_ranks::get().size();
  test_ranks::get().for_each_rank([&](member& self) {
    gpu::buffer data(count * sizeof(float)), wrong(sizeof(int));
    auto* const values = reinterpret_cast<float*>(data.data());
    auto* const errors = reinterpret_cast<int*>(wrong.data());
    check(cudaMemset(errors, 0, sizeof(int)));
    const auto allreduce = [&] {
      ASSERT_EQ(isthmus_allreduce(values, values, count, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator,
                                  stream_of(self)),
                ISTHMUS_SUCCESS)
          << gpu::last_error();
    };
    allreduce();  // the first call establishes connections
    self.queue->synchronize();
    cudaEvent_t produced;
    check(cudaEventCreateWithFlags(&produced, cudaEventDisableTiming));
    late_producer<<<64, 256, 0, stream_of(self)>>>(values, count, static_cast<float>(self.rank + 1),
                                                   std::chrono::nanoseconds(delay).count());
    check(cudaGetLastError());
    check(cudaEventRecord(produced, stream_of(self)));
    const auto start = std::chrono::steady_clock::now();
    allreduce();
    const auto call_time = std::chrono::steady_clock::now() - start;
    const cudaError_t state = cudaEventQuery(produced);
    consumer<<<64, 256, 0, stream_of(self)>>>(values, count, static_cast<float>(size * (size + 1) / 2), errors);
    check(cudaGetLastError());
    EXPECT_EQ(state, cudaErrorNotReady) << "the call waited for the producer";
    EXPECT_LT(call_time, delay / 4);
    int host_errors = -1;
    check(cudaMemcpyAsync(&host_errors, errors, sizeof(int), cudaMemcpyDeviceToHost, stream_of(self)));
    self.queue->synchronize();
    EXPECT_EQ(host_errors, 0);
    check(cudaEventDestroy(produced));
  });
}

class captured : public ::testing::TestWithParam<gpu::table_row> {};

TEST_P(captured, graph_replays_compute_on_fresh_data) {
  const gpu::table_row& row = GetParam();
  test_ranks::get().for_each_rank([&](member& self) {
    const scenario setup{gpu::make_shape(row.collective, test_ranks::get().size(), 0, 10000), ISTHMUS_FLOAT32,
                         ISTHMUS_SUM, row.collective == ISTHMUS_ALLTOALL, 21};
    rank_call call(setup, self);
    ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();  // establishes connections
    self.queue->synchronize();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_of(self), cudaStreamCaptureModeThreadLocal));
    const isthmus_status status = call.start();
    check(cudaStreamEndCapture(stream_of(self), &graph));
    ASSERT_EQ(status, ISTHMUS_SUCCESS) << gpu::last_error();
    check(cudaGraphInstantiate(&executable, graph, 0));
    for (const std::uint64_t seed : {31, 32, 33}) {
      call.refill(seed);
      check(cudaGraphLaunch(executable, stream_of(self)));
      self.queue->synchronize();
      EXPECT_EQ(call.error(), "") << row.name << " on rank " << self.rank << ", replay " << seed;
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
  });
}

INSTANTIATE_TEST_SUITE_P(table, captured, ::testing::ValuesIn(gpu::table()),
                         [](const auto& info) { return std::string(info.param.name); });

// Roots change within the graph and between its launches, and ranks are skewed.
TEST(captured_broadcasts, all_roots_replay_back_to_back) {
  constexpr std::uint64_t counts[] = {1, 1000, 5632, 60000};
  const int size = test_ranks::get().size();
  test_ranks::get().for_each_rank([&](member& self) {
    std::deque<rank_call> calls;
    for (int root = 0; root < size; ++root)
      for (const std::uint64_t count : counts)
        for (const isthmus_collective collective : {ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER, ISTHMUS_BROADCAST})
          calls.emplace_back(
              scenario{gpu::make_shape(collective, size, collective == ISTHMUS_BROADCAST ? root : 0,
                                       collective == ISTHMUS_BROADCAST ? count : 300),
                       ISTHMUS_FLOAT32, ISTHMUS_SUM, false, 1},
              self);
    const auto start_all = [&] {
      for (const rank_call& call : calls) ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << gpu::last_error();
    };
    start_all();  // establishes connections
    self.queue->synchronize();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_of(self), cudaStreamCaptureModeThreadLocal));
    start_all();
    check(cudaStreamEndCapture(stream_of(self), &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    for (const std::uint64_t seed : {41, 42, 43, 44}) {
      for (rank_call& call : calls) call.refill(seed);
      for (int launch = 0; launch < 20; ++launch) {
        if (launch % size == self.rank) std::this_thread::sleep_for(std::chrono::microseconds(300));
        check(cudaGraphLaunch(executable, stream_of(self)));
      }
      self.queue->synchronize();
      for (std::size_t i = 0; i < calls.size(); ++i)
        EXPECT_EQ(calls[i].error(), "") << "call " << i << " on rank " << self.rank << ", seed " << seed;
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
  });
}

// One rank never makes the call: abort must release the other rank's stream soon.
TEST(abort, releases_a_stream_that_waits_for_a_missing_rank) {
  if (!test_ranks::get().is_single_process() || test_ranks::get().size() < 2)
    GTEST_SKIP() << "needs two ranks here";
  const isthmus_device devices[2] = {{ISTHMUS_PLATFORM_CUDA, 0}, {ISTHMUS_PLATFORM_CUDA, 1}};
  isthmus_communicator pair[2] = {};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.timeout_s = 30;
  ASSERT_EQ(isthmus_communicator_create_all(2, devices, &options, pair), ISTHMUS_SUCCESS) << gpu::last_error();
  gpu::stream queue(0);
  gpu::buffer data(4096);
  gpu::stream other(1);
  gpu::buffer data_of_other(4096);
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);  // connects, so that the next call only enqueues
  isthmus_allreduce(data.data(), data.data(), 1024, ISTHMUS_FLOAT32, ISTHMUS_SUM, pair[0], queue.native());
  isthmus_allreduce(data_of_other.data(), data_of_other.data(), 1024, ISTHMUS_FLOAT32, ISTHMUS_SUM, pair[1],
                    other.native());
  ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << gpu::last_error();
  queue.synchronize();
  other.synchronize();
  ASSERT_EQ(
      isthmus_allreduce(data.data(), data.data(), 1024, ISTHMUS_FLOAT32, ISTHMUS_SUM, pair[0], queue.native()),
      ISTHMUS_SUCCESS);
  EXPECT_EQ(cudaStreamQuery(static_cast<cudaStream_t>(queue.native())), cudaErrorNotReady);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(isthmus_communicator_abort(pair[0]), ISTHMUS_SUCCESS);
  queue.synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(
      isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, pair[0], queue.native()),
      ISTHMUS_ERROR_ABORTED);
  for (isthmus_communicator each : pair) isthmus_communicator_destroy(each);
}

}  // namespace
