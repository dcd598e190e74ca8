// Tests graph capture of tensor-parallel allreduce on real devices, and the cleanup after failures.
#include <cuda.h>
#include <dlfcn.h>

#include <functional>
#include <type_traits>

#include "operators/tensor_parallel/shards.hpp"
#include "tensor_parallel_ranks.hpp"

namespace tensor_parallel_test {
namespace {

// Captures the work that `calls` enqueues, as one graph per rank.
std::vector<cudaGraph_t> capture(const device_ranks& ranks, const std::function<void()>& calls) {
  const int n = ranks.size();
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaStreamBeginCapture(ranks.streams[rank], cudaStreamCaptureModeThreadLocal));
  }
  calls();
  std::vector<cudaGraph_t> captured_graphs(
      n);  // no graph may be instantiated while another stream is capturing
  for (int rank = 0; rank < n; ++rank) check(cudaStreamEndCapture(ranks.streams[rank], &captured_graphs[rank]));
  return captured_graphs;
}

// Returns the name of a graph's only kernel. It must use the driver: the plug-in is linked with its own CUDA
// runtime, and a runtime knows only its own kernels.
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

// A template argument of the kernel is the result target: 1 for the inbox, 2 for the tensors.
TEST_P(devices, zero_copy_is_used_only_for_writable_tensors) {
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
      EXPECT_EQ(isthmus_tensor_parallel_allreduce(ranks.handle, pointers.data(), count, ISTHMUS_FLOAT32,
                                                  ISTHMUS_ALL_ACTIVE),
                ISTHMUS_SUCCESS)
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
  EXPECT_NE(kernel(mixed).find("result_targetE1E"), std::string::npos)
      << "one tensor is pool memory, so zero copy must not be used";
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    const auto shard = shards::make(5, rank, count, true);
    check(cudaMemcpyAsync(pooled[rank], shard.data(), count * 4, cudaMemcpyDefault, ranks.streams[rank]));
  }
  ranks.wait();
  ASSERT_EQ(isthmus_tensor_parallel_allreduce(ranks.handle, pooled.data(), count, ISTHMUS_FLOAT32,
                                              ISTHMUS_ALL_ACTIVE),
            ISTHMUS_SUCCESS);
  for (int rank = 0; rank < n; ++rank) {
    std::vector<float> result(count);
    check(cudaSetDevice(rank));  // pool memory is accessible only from its own device
    check(cudaMemcpyAsync(result.data(), pooled[rank], count * 4, cudaMemcpyDefault, ranks.streams[rank]));
    check(cudaFreeAsync(pooled[rank], ranks.streams[rank]));
    check(cudaStreamSynchronize(ranks.streams[rank]));
    EXPECT_EQ(shards::count_wrong(result, 5, n, ISTHMUS_ALL_ACTIVE), 0u) << rank;
  }
}

void replay_captured_calls(device_ranks& ranks, std::uint64_t count) {
  const int n = ranks.size();
  std::vector<cudaGraphExec_t> graphs(n);
  const auto captured_graphs = capture(ranks, [&] {
    for (int call = 0; call < 3; ++call) ASSERT_TRUE(ranks.sum(count)) << last_error();
  });
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaGraphInstantiate(&graphs[rank], captured_graphs[rank], 0));
    check(cudaGraphDestroy(captured_graphs[rank]));
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

TEST_P(devices, captured_graph_replays_with_new_data) {
  for (const char* algorithm : {default_algorithm, zero_copy}) {
    device_ranks ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT, algorithm);
    replay_captured_calls(ranks, 3000);
  }
}

// An invalidated capture rejects every launch. The test does this on the last device, after the launches on the
// other devices have succeeded.
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

TEST_P(devices, partially_failed_launch_writes_nothing) {
  const int n = GetParam();
  for (const auto& [count, algorithm] :
       {std::pair(100, default_algorithm), {3000000, default_algorithm}, {3000000, zero_copy}}) {
    device_ranks ranks(n, 16 << 20, ISTHMUS_WIRE_EXACT, algorithm, 10);
    for (int rank = 0; rank < n; ++rank) ranks.write(rank, shards::make(3, rank, count, true));
    EXPECT_FALSE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_INT32))
        << "devices support only floating-point types";
    check(cudaSetDevice(n - 1));
    spoil_capture(ranks.streams[n - 1]);
    EXPECT_FALSE(ranks.sum(count));
    end_capture(ranks.streams[n - 1]);
    EXPECT_FALSE(ranks.sum(count)) << "the handle must be unusable after a failed launch";
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(ranks.read<float>(rank, count), shards::make(3, rank, count, true)) << rank;
  }
}

TEST_P(devices, failed_init_frees_all_device_memory) {
  const int n = GetParam();
  std::vector<isthmus_device> places;
  std::vector<std::size_t> initial_free(n);
  for (int rank = 0; rank < n; ++rank) {
    places.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    check(cudaSetDevice(rank));
    std::size_t total = 0;
    check(cudaMemGetInfo(&initial_free[rank], &total));
  }
  std::vector<void*> filler_blocks;  // all memory of the last device, down to blocks of 2 MiB
  for (std::size_t block_bytes = std::size_t(64) << 30; block_bytes >= 2 << 20;) {
    void* pointer = nullptr;
    if (cudaMalloc(&pointer, block_bytes) == cudaSuccess)
      filler_blocks.push_back(pointer);
    else
      block_bytes /= 2;
  }
  (void)cudaGetLastError();
  isthmus_tensor_parallel handle = nullptr;
  EXPECT_EQ(isthmus_tensor_parallel_create(n, places.data(), nullptr, nullptr, &handle),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_EQ(handle, nullptr);
  EXPECT_NE(last_error().find("memory"), std::string::npos) << last_error();
  for (void* pointer : filler_blocks) check(cudaFree(pointer));
  for (int rank = 0; rank < n; ++rank) {
    std::size_t free = 0, total = 0;
    check(cudaSetDevice(rank));
    check(cudaMemGetInfo(&free, &total));
    EXPECT_GE(free + (32 << 20), initial_free[rank]) << "device " << rank;  // the driver may keep a little
  }
  EXPECT_EQ(isthmus_tensor_parallel_create(n, places.data(), nullptr, nullptr, &handle), ISTHMUS_SUCCESS)
      << last_error();
  isthmus_tensor_parallel_destroy(handle);
}

}  // namespace
}  // namespace tensor_parallel_test
