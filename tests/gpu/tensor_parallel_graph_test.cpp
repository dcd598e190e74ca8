// The trio captured into graphs on real devices, and what is left behind where it can not run.
#include <cuda.h>
#include <dlfcn.h>

#include <functional>
#include <type_traits>

#include "operators/tensor_parallel/shards.hpp"
#include "tensor_parallel_ranks.hpp"

namespace trio_test {
namespace {

// What `calls` enqueues, as a graph of each rank.
std::vector<cudaGraph_t> capture(const device_ranks& ranks, const std::function<void()>& calls) {
  const int n = ranks.size();
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaStreamBeginCapture(ranks.streams[rank], cudaStreamCaptureModeThreadLocal));
  }
  calls();
  std::vector<cudaGraph_t> captured(n);  // nothing may be instantiated while another stream still captures
  for (int rank = 0; rank < n; ++rank) check(cudaStreamEndCapture(ranks.streams[rank], &captured[rank]));
  return captured;
}

// The name of the only kernel of a graph, by the driver: the plug-in has a CUDA runtime of its own, and a
// runtime knows its own kernels only.
std::string kernel_of(cudaGraph_t graph) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("the CUDA driver lacks ") + name);
  };
  CUresult (*parameters_of)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*name_of_function)(const char**, CUfunction);
  CUresult (*name_of_kernel)(const char**, CUkernel);
  find("cuGraphKernelNodeGetParams_v2", parameters_of);
  find("cuFuncGetName", name_of_function);
  find("cuKernelGetName", name_of_kernel);
  cudaGraphNode_t node = nullptr;
  std::size_t nodes = 1;
  check(cudaGraphGetNodes(graph, &node, &nodes));
  CUDA_KERNEL_NODE_PARAMS parameters{};
  const char* name = nullptr;
  if (nodes != 1 || parameters_of(node, &parameters) != CUDA_SUCCESS) return "none";
  const CUresult code = parameters.func != nullptr ? name_of_function(&name, parameters.func)
                                                   : name_of_kernel(&name, parameters.kern);
  return code == CUDA_SUCCESS ? name : "unknown";
}

// A template argument of the kernel says where results go: 1 into the inbox, 2 into the tensors.
TEST_P(devices, direct_is_taken_where_the_others_can_write_and_only_there) {
  const int n = GetParam();
  const std::uint64_t count = 100000;
  device_ranks ranks(n, count * 4, ISTHMUS_WIRE_EXACT, zero_copy);
  std::vector<void*> plain(n), pooled(n);
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    plain[rank] = ranks.memory[rank];
    check(cudaMallocAsync(&pooled[rank], count * 4, ranks.streams[rank]));
  }
  ranks.wait();
  const auto kernel = [&](const std::vector<void*>& pointers) {
    const auto graphs = capture(ranks, [&] {
      EXPECT_TRUE(isthmus_tensor_parallel_allreduce(ranks.handle, pointers.data(), count, ISTHMUS_FLOAT32,
                                                    ISTHMUS_ALL_ACTIVE))
          << last_error();
    });
    const std::string name = kernel_of(graphs[0]);
    for (cudaGraph_t graph : graphs) check(cudaGraphDestroy(graph));
    return name;
  };
  EXPECT_NE(kernel(plain).find("result_targetE2E"), std::string::npos) << kernel(plain);
  EXPECT_NE(kernel(pooled).find("result_targetE1E"), std::string::npos) << kernel(pooled);
  std::vector<void*> mixed = plain;
  mixed.back() = pooled.back();
  EXPECT_NE(kernel(mixed).find("result_targetE1E"), std::string::npos) << "one tensor is in a pool";
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    const auto shard = shards::make(5, rank, count, true);
    check(cudaMemcpyAsync(pooled[rank], shard.data(), count * 4, cudaMemcpyDefault, ranks.streams[rank]));
  }
  ranks.wait();
  ASSERT_TRUE(isthmus_tensor_parallel_allreduce(ranks.handle, pooled.data(), count, ISTHMUS_FLOAT32,
                                                ISTHMUS_ALL_ACTIVE));
  for (int rank = 0; rank < n; ++rank) {
    std::vector<float> result(count);
    check(cudaSetDevice(rank));  // a pool's memory can be reached from its own device only
    check(cudaMemcpyAsync(result.data(), pooled[rank], count * 4, cudaMemcpyDefault, ranks.streams[rank]));
    check(cudaFreeAsync(pooled[rank], ranks.streams[rank]));
    check(cudaStreamSynchronize(ranks.streams[rank]));
    EXPECT_EQ(shards::count_wrong(result, 5, n, ISTHMUS_ALL_ACTIVE), 0u) << rank;
  }
}

void replay_captured_calls(device_ranks& ranks, std::uint64_t count) {
  const int n = ranks.size();
  std::vector<cudaGraphExec_t> graphs(n);
  const auto captured = capture(ranks, [&] {
    for (int call = 0; call < 3; ++call) ASSERT_TRUE(ranks.sum(count)) << last_error();
  });
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaGraphInstantiate(&graphs[rank], captured[rank], 0));
    check(cudaGraphDestroy(captured[rank]));
  }
  for (int replay = 0; replay < 5; ++replay) {
    for (int rank = 0; rank < n; ++rank) ranks.write(rank, std::vector<float>(count, replay + 1.0f));
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      check(cudaGraphLaunch(graphs[rank], ranks.streams[rank]));
    }
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(ranks.read<float>(rank, count), std::vector<float>(count, (replay + 1.0f) * n * n * n)) << rank;
  }
  for (cudaGraphExec_t graph : graphs) check(cudaGraphExecDestroy(graph));
}

TEST_P(devices, captured_into_a_graph) {
  for (const char* algorithm : {default_algorithm, zero_copy}) {
    device_ranks ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT, algorithm);
    replay_captured_calls(ranks, 3000);
  }
}

// A capture that has been spoiled refuses every launch: here on the last device, after the others have got
// theirs.
void spoil_capture(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);  // not permitted: invalidates the capture
  (void)cudaGetLastError();
}
void end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  (void)cudaGetLastError();
}

TEST_P(devices, a_launch_that_fails_half_way_touches_nothing) {
  const int n = GetParam();
  for (const auto& [count, algorithm] :
       {std::pair(100, default_algorithm), {3000000, default_algorithm}, {3000000, zero_copy}}) {
    device_ranks ranks(n, 16 << 20, ISTHMUS_WIRE_EXACT, algorithm, 10);
    for (int rank = 0; rank < n; ++rank) ranks.write(rank, shards::make(3, rank, count, true));
    EXPECT_FALSE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_INT32)) << "devices sum floats only";
    check(cudaSetDevice(n - 1));
    spoil_capture(ranks.streams[n - 1]);
    EXPECT_FALSE(ranks.sum(count));
    end_capture(ranks.streams[n - 1]);
    EXPECT_FALSE(ranks.sum(count)) << "the handle is of no use any more";
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(ranks.read<float>(rank, count), shards::make(3, rank, count, true)) << rank;
  }
}

TEST_P(devices, no_memory_on_the_last_device_leaves_nothing_behind) {
  const int n = GetParam();
  std::vector<isthmus_device> places;
  std::vector<std::size_t> before(n);
  for (int rank = 0; rank < n; ++rank) {
    places.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    check(cudaSetDevice(rank));
    std::size_t total = 0;
    check(cudaMemGetInfo(&before[rank], &total));
  }
  std::vector<void*> occupied;  // everything that the last device has, down to pieces of 2 MiB
  for (std::size_t block_bytes = std::size_t(64) << 30; block_bytes >= 2 << 20;) {
    void* pointer = nullptr;
    if (cudaMalloc(&pointer, block_bytes) == cudaSuccess)
      occupied.push_back(pointer);
    else
      block_bytes /= 2;
  }
  (void)cudaGetLastError();
  EXPECT_EQ(isthmus_tensor_parallel_init(n, places.data(), nullptr, nullptr), nullptr);
  EXPECT_NE(last_error().find("memory"), std::string::npos) << last_error();
  for (void* pointer : occupied) check(cudaFree(pointer));
  for (int rank = 0; rank < n; ++rank) {
    std::size_t free = 0, total = 0;
    check(cudaSetDevice(rank));
    check(cudaMemGetInfo(&free, &total));
    EXPECT_GE(free + (32 << 20), before[rank]) << "device " << rank;  // the driver may keep a little
  }
  const auto handle = isthmus_tensor_parallel_init(n, places.data(), nullptr, nullptr);
  EXPECT_NE(handle, nullptr) << last_error();
  isthmus_tensor_parallel_free(handle);
}

}  // namespace
}  // namespace trio_test
