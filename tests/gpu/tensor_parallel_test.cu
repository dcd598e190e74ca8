// The trio on real devices, for every number of them up to 8: masks, sizes, wires, ordering, skew, failures.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "tensor_parallel/shards.hpp"

namespace {

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

std::string last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info.message;
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 8) : 0;
}

constexpr const char* by_default = "";
constexpr const char* direct = "two_shot_direct";

// A configuration that has one algorithm take every size; gone with its owner.
class rules_file {
 public:
  explicit rules_file(std::string_view algorithm)
      : m_path(::testing::TempDir() + "/isthmus_tensor_parallel_" + std::to_string(getpid()) + ".toml") {
    std::ofstream(m_path) << "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:" << algorithm << "\"\n";
  }
  ~rules_file() { (void)std::remove(m_path.c_str()); }
  rules_file(const rules_file&) = delete;
  const char* path() const { return m_path.c_str(); }

 private:
  std::string m_path;
};

// n devices with a stream, a buffer and a handle.
class team {
 public:
  team(int n, std::uint64_t bytes, isthmus_wire wire, std::string_view algorithm = by_default,
       double timeout_s = 30)
      : m_n(n) {
    std::vector<isthmus_device> devices;
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
      cudaStream_t stream;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      streams.push_back(stream);
      void* pointer = nullptr;
      check(cudaMalloc(&pointer, bytes + 128));
      memory.push_back(static_cast<std::byte*>(pointer));
    }
    isthmus_tensor_parallel_options options{};
    options.struct_bytes = sizeof options;
    options.wire = wire;
    options.timeout_s = timeout_s;
    std::optional<rules_file> rules;
    if (!algorithm.empty()) options.config_path = rules.emplace(algorithm).path();
    const std::vector<isthmus_stream> given(streams.begin(), streams.end());
    handle = isthmus_tensor_parallel_init(n, devices.data(), given.data(), &options);
    if (handle == nullptr) throw std::runtime_error("init: " + last_error());
  }
  ~team() {
    isthmus_tensor_parallel_free(handle);
    for (int rank = 0; rank < m_n; ++rank) {
      (void)cudaSetDevice(rank);
      (void)cudaFree(memory[rank]);
      (void)cudaStreamDestroy(streams[rank]);
    }
  }
  team(const team&) = delete;

  template <typename T>
  void write(int rank, const std::vector<T>& values, std::size_t offset = 0) {
    check(cudaMemcpyAsync(tensor(rank, offset), values.data(), values.size() * sizeof(T), cudaMemcpyDefault,
                          streams[rank]));
    check(cudaStreamSynchronize(streams[rank]));
  }
  template <typename T>
  std::vector<T> read(int rank, std::uint64_t count, std::size_t offset = 0) {
    std::vector<T> values(count);
    check(cudaMemcpyAsync(values.data(), tensor(rank, offset), count * sizeof(T), cudaMemcpyDefault,
                          streams[rank]));
    check(cudaStreamSynchronize(streams[rank]));
    return values;
  }
  bool sum(std::uint64_t count, std::uint64_t active = ISTHMUS_ALL_ACTIVE,
           isthmus_datatype type = ISTHMUS_FLOAT32, std::size_t offset = 0) {
    void* pointers[16];
    for (int rank = 0; rank < m_n; ++rank) pointers[rank] = tensor(rank, offset);
    return isthmus_tensor_parallel_allreduce(handle, pointers, count, type, active);
  }
  void wait() {
    for (cudaStream_t stream : streams) check(cudaStreamSynchronize(stream));
  }
  int size() const { return m_n; }
  std::byte* tensor(int rank, std::size_t offset) const {
    return memory[rank] + offset + static_cast<std::size_t>(rank) * apart_bytes;
  }

  std::size_t apart_bytes = 0;  // each rank's tensor lies by so much further in its memory than the one before
  std::vector<cudaStream_t> streams;
  std::vector<std::byte*> memory;
  isthmus_tensor_parallel handle = nullptr;

 private:
  int m_n;
};

class devices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (device_count() < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
};

TEST_P(devices, every_active_mask_with_nan_in_inactive_shards) {
  const int n = GetParam();
  for (const char* algorithm : {by_default, direct}) {
    team ranks(n, 1 << 20, ISTHMUS_WIRE_EXACT, algorithm);
    for (std::uint64_t active = 0; active < 1u << n; ++active)
      for (const std::uint64_t count : {33, 260000}) {  // one shot and two
        for (int rank = 0; rank < n; ++rank)
          ranks.write(rank, shards::make(active, rank, count, (active >> rank & 1u) != 0));
        ASSERT_TRUE(ranks.sum(count, active)) << last_error();
        for (int rank = 0; rank < n; ++rank)
          ASSERT_EQ(shards::count_wrong(ranks.read<float>(rank, count), active, n, active), 0u)
              << algorithm << " mask " << active << " of " << n << ", rank " << rank << ", " << count;
      }
  }
}

// Devices write into each other's tensors there, whatever the alignment of each, and nowhere else.
TEST_P(devices, direct_results_fill_tensors_of_different_alignments_and_nothing_beside) {
  const int n = GetParam();
  team ranks(n, 24 << 20, ISTHMUS_WIRE_EXACT, direct);
  for (const std::size_t apart : {0, 4, 8, 12})
    for (const std::uint64_t count : {1, 3, 9, 127, 32769, 1048577, 6000000}) {
      ranks.apart_bytes = apart;
      const std::uint64_t edge = 4;  // elements before and behind the tensor
      for (int rank = 0; rank < n; ++rank) {
        std::vector<float> shard = shards::make(count, rank, count, true);
        shard.insert(shard.begin(), edge, 77.0f);
        shard.insert(shard.end(), edge, 77.0f);
        ranks.write(rank, shard);
      }
      ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_FLOAT32, edge * 4)) << last_error();
      for (int rank = 0; rank < n; ++rank) {
        std::vector<float> result = ranks.read<float>(rank, count + 2 * edge);
        for (std::uint64_t i = 0; i < edge; ++i)
          ASSERT_TRUE(result[i] == 77.0f && result[edge + count + i] == 77.0f)
              << "beside the tensor of rank " << rank << ", " << count << " elements, " << apart << " apart";
        result.erase(result.begin(), result.begin() + edge);
        result.resize(count);
        ASSERT_EQ(shards::count_wrong(result, count, n, ISTHMUS_ALL_ACTIVE), 0u)
            << "rank " << rank << ", " << count << " elements, " << apart << " apart";
      }
    }
}

TEST_P(devices, sizes_grow_and_shrink_on_both_wires_at_any_alignment) {
  const int n = GetParam();
  for (const isthmus_wire wire : {ISTHMUS_WIRE_BY_RULE, ISTHMUS_WIRE_EXACT, ISTHMUS_WIRE_BFLOAT16}) {
    team ranks(n, 200 << 20, wire);
    for (const std::uint64_t count : {0, 1, 3, 127, 32767, 32768, 32769, 65535, 65536, 65537, 196608, 524287,
                                      1048577, 5000003, 20000001, 65536, 7})
      for (const std::size_t offset : {0, 4}) {
        std::vector<float> first;
        for (int rank = 0; rank < n; ++rank) ranks.write(rank, shards::make(count, rank, count, true), offset);
        ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, ISTHMUS_FLOAT32, offset)) << last_error();
        for (int rank = 0; rank < n; ++rank) {
          const auto result = ranks.read<float>(rank, count, offset);
          // Looking at every element of the longest takes the host too long; identity covers the others.
          if (rank == 0 || count < 100000) {
            ASSERT_EQ(shards::count_wrong(result, count, n, ISTHMUS_ALL_ACTIVE), 0u)
                << count << " on wire " << wire;
            first = result;
          }
          ASSERT_TRUE(std::memcmp(result.data(), first.data(), count * 4) == 0) << count << ", rank " << rank;
        }
        if (count > 6000000) break;
      }
  }
}

// |result - exact| <= (2 u + u^2 + n 2^-23) * sum of |x|, u = 2^-8: the bound of tensor_parallel.h; and on the
// exact wire float32's own bound, (n - 1) 2^-24 / (1 - (n - 1) 2^-24).
TEST_P(devices, random_numbers_stay_in_their_bounds_and_ranks_agree_bit_by_bit) {
  const int n = GetParam();
  for (const bool bf16 : {false, true}) {
    team ranks(n, 8 << 20, bf16 ? ISTHMUS_WIRE_BFLOAT16 : ISTHMUS_WIRE_EXACT);
    for (const std::uint64_t count : {1000, 2000003}) {
      std::vector<std::vector<float>> inputs(n, std::vector<float>(count));
      for (int rank = 0; rank < n; ++rank) {
        oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::flavour::ordinary, 9}, rank, 0,
                     std::as_writable_bytes(std::span(inputs[rank])));
        ranks.write(rank, inputs[rank]);
      }
      ASSERT_TRUE(ranks.sum(count));
      const auto result = ranks.read<float>(0, count);
      for (int rank = 1; rank < n; ++rank)
        ASSERT_EQ(std::memcmp(ranks.read<float>(rank, count).data(), result.data(), count * 4), 0) << rank;
      const double u = std::ldexp(1.0, -8), v = (n - 1) * std::ldexp(1.0, -24);
      const double bound = bf16 ? 2 * u + u * u + n * std::ldexp(1.0, -23) : v / (1 - v);
      std::uint64_t inexact = 0;
      for (std::uint64_t i = 0; i < count; ++i) {
        double exact = 0, size = 0;
        for (const auto& input : inputs) {
          exact += static_cast<double>(input[i]);
          size += std::fabs(static_cast<double>(input[i]));
        }
        const double error = std::fabs(static_cast<double>(result[i]) - exact);
        ASSERT_LE(error, bound * size + 1e-38) << i;
        inexact += error > 1e-6 * size;
      }
      EXPECT_EQ(inexact > count / 2, bf16);
    }
  }
}

TEST_P(devices, sixteen_bit_types) {
  const int n = GetParam();
  for (const char* algorithm : {by_default, direct}) {
    team ranks(n, 4 << 20, ISTHMUS_WIRE_BY_RULE, algorithm);
    ranks.apart_bytes = 2;
    for (const isthmus_datatype type : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16})
      for (const std::uint64_t count : {5, 70001, 1500000}) {
        const auto bits = [type](float whole) {  // small whole numbers, exact in both types
          std::uint32_t word;
          std::memcpy(&word, &whole, 4);
          if (type == ISTHMUS_BFLOAT16) return static_cast<std::uint16_t>(word >> 16);
          if (whole == 0) return static_cast<std::uint16_t>(0);
          return static_cast<std::uint16_t>((word >> 16 & 0x8000u) | ((word >> 13 & 0x3fc00u) - (112u << 10)) |
                                            (word >> 13 & 0x3ffu));
        };
        for (int rank = 0; rank < n; ++rank) {
          std::vector<std::uint16_t> shard(count);
          for (std::uint64_t i = 0; i < count; ++i) shard[i] = bits(shards::value(2, rank, i));
          ranks.write(rank, shard, 2);
        }
        ASSERT_TRUE(ranks.sum(count, ISTHMUS_ALL_ACTIVE, type, 2));
        for (int rank = 0; rank < n; ++rank) {
          const auto result = ranks.read<std::uint16_t>(rank, count, 2);
          std::uint64_t wrong = 0;
          for (std::uint64_t i = 0; i < count; ++i)
            wrong += result[i] != bits(shards::expected(2, n, ~0ull, i));
          ASSERT_EQ(wrong, 0u) << count << " of type " << type << ", rank " << rank;
        }
      }
  }
}

__global__ void delayed_fill(float* data, std::uint64_t count, float value, long long nanoseconds) {
  std::uint64_t now, start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (static_cast<long long>(now - start) < nanoseconds);
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) data[i] = value;
}

// Counts what is not `expected`, then puts `next` there: consumer of one call and producer of the next.
__global__ void consume_and_produce(float* data, std::uint64_t count, float expected, float next,
                                    unsigned* wrong, long long nanoseconds) {
  std::uint64_t now, start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  const std::uint64_t stride = std::uint64_t(gridDim.x) * blockDim.x;
  for (std::uint64_t i = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (data[i] != expected) atomicAdd(wrong, 1u);
    data[i] = next;
  }
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (static_cast<long long>(now - start) < nanoseconds);
}

TEST_P(devices, late_producer_and_unsynchronised_consumer_while_the_host_goes_on) {
  const int n = GetParam();
  const std::uint64_t count = 10000;
  team ranks(n, count * 8, ISTHMUS_WIRE_EXACT);
  ASSERT_TRUE(ranks.sum(1));
  ranks.wait();
  for (int late = 0; late < n; ++late) {
    const auto start = std::chrono::steady_clock::now();
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      delayed_fill<<<1, 256, 0, ranks.streams[rank]>>>(reinterpret_cast<float*>(ranks.memory[rank]), count,
                                                       rank + 1.0f, rank == late ? 50000000 : 0);
    }
    ASSERT_TRUE(ranks.sum(count));
    for (int rank = 0; rank < n; ++rank)
      check(cudaMemcpyAsync(ranks.memory[rank] + count * 4, ranks.memory[rank], count * 4,
                            cudaMemcpyDeviceToDevice, ranks.streams[rank]));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40)) << "the host waited";
    for (int rank = 0; rank < n; ++rank) {
      const auto result = ranks.read<float>(rank, count, count * 4);
      EXPECT_EQ(result, std::vector<float>(count, n * (n + 1) / 2.0f)) << rank;
    }
  }
}

// Every call has other numbers, so that a word of an earlier generation shows; ranks are late by turns.
void back_to_back(team& ranks, int calls, const std::vector<std::uint64_t>& counts) {
  const int n = ranks.size();
  std::vector<unsigned*> wrong(n);
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    check(cudaMalloc(reinterpret_cast<void**>(&wrong[rank]), 4));
    check(cudaMemset(wrong[rank], 0, 4));
  }
  const auto value = [](int call, int rank) { return static_cast<float>((call * 7 + rank * 5) % 13); };
  const auto total = [&](int call) {
    float sum = 0;
    for (int rank = 0; rank < n; ++rank) sum += value(call, rank);
    return sum;
  };
  for (int call = 0; call <= calls; ++call) {
    const std::uint64_t before = counts[(call + counts.size() - 1) % counts.size()];
    const std::uint64_t count = counts[call % counts.size()];
    const std::uint64_t most = std::max(before, count);
    for (int rank = 0; rank < n; ++rank) {
      check(cudaSetDevice(rank));
      auto* data = reinterpret_cast<float*>(ranks.memory[rank]);
      const int blocks = static_cast<int>(std::min<std::uint64_t>((most + 255) / 256, 1024));
      const long long delay = call % 97 == rank ? 20000 : 0;
      // Only what the call before summed is compared; the rest is made ready.
      consume_and_produce<<<blocks, 256, 0, ranks.streams[rank]>>>(
          data, call == 0 ? 0 : before, total(call - 1), value(call, rank), wrong[rank], delay);
      if (count > before || call == 0) {
        const std::uint64_t from = call == 0 ? 0 : before;
        delayed_fill<<<1, 1024, 0, ranks.streams[rank]>>>(data + from, count - from, value(call, rank), 0);
      }
    }
    ASSERT_TRUE(ranks.sum(count)) << "call " << call << ": " << last_error();
  }
  ranks.wait();
  for (int rank = 0; rank < n; ++rank) {
    unsigned count = 0;
    check(cudaMemcpy(&count, wrong[rank], 4, cudaMemcpyDefault));
    EXPECT_EQ(count, 0u) << "rank " << rank;
    check(cudaFree(wrong[rank]));
  }
}

TEST_P(devices, a_hundred_thousand_calls_back_to_back_with_skew) {
  team ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT);
  back_to_back(ranks, 100000, {1, 100, 5000, 40, 20000});
}

// With one element most ranks have nothing to add, and run ahead of the others.
TEST_P(devices, thirty_thousand_direct_calls_back_to_back_with_skew) {
  team ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT, direct);
  back_to_back(ranks, 30000, {1, 1, 100, 5000, 2, 40, 20000});
}

// Long calls run through all generations of the inbox several times and follow each other at once.
TEST_P(devices, long_calls_back_to_back_with_skew) {
  const std::vector<std::uint64_t> counts = {40000000, 16000000, 9000000, 2000001, 33000005, 70000, 12345678};
  for (const isthmus_wire wire : {ISTHMUS_WIRE_EXACT, ISTHMUS_WIRE_BFLOAT16}) {
    team ranks(GetParam(), 170 << 20, wire);
    back_to_back(ranks, 200, counts);
  }
  team ranks(GetParam(), 170 << 20, ISTHMUS_WIRE_EXACT, direct);
  back_to_back(ranks, 200, counts);
}

// What `calls` enqueues, as a graph of each rank.
std::vector<cudaGraph_t> capture(const team& ranks, const std::function<void()>& calls) {
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
  team ranks(n, count * 4, ISTHMUS_WIRE_EXACT, direct);
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
  EXPECT_NE(kernel(plain).find("resultsE2E"), std::string::npos) << kernel(plain);
  EXPECT_NE(kernel(pooled).find("resultsE1E"), std::string::npos) << kernel(pooled);
  std::vector<void*> mixed = plain;
  mixed.back() = pooled.back();
  EXPECT_NE(kernel(mixed).find("resultsE1E"), std::string::npos) << "one tensor is in a pool";
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

void replay_captured_calls(team& ranks, std::uint64_t count) {
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
  for (const char* algorithm : {by_default, direct}) {
    team ranks(GetParam(), 1 << 20, ISTHMUS_WIRE_EXACT, algorithm);
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
       {std::pair(100, by_default), {3000000, by_default}, {3000000, direct}}) {
    team ranks(n, 16 << 20, ISTHMUS_WIRE_EXACT, algorithm, 10);
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

TEST_P(devices, free_with_work_in_flight) {
  const int n = GetParam();
  const std::uint64_t count = 4000;
  auto ranks = std::make_unique<team>(n, count * 4, ISTHMUS_WIRE_EXACT);
  for (int rank = 0; rank < n; ++rank) {
    check(cudaSetDevice(rank));
    delayed_fill<<<1, 256, 0, ranks->streams[rank]>>>(reinterpret_cast<float*>(ranks->memory[rank]), count,
                                                      2.0f, rank == 0 ? 30000000 : 0);
  }
  ASSERT_TRUE(ranks->sum(count));
  isthmus_tensor_parallel_free(std::exchange(ranks->handle, nullptr));
  for (int rank = 0; rank < n; ++rank)
    EXPECT_EQ(ranks->read<float>(rank, count), std::vector<float>(count, 2.0f * n));
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
  std::vector<void*> hog;  // everything that the last device has, down to pieces of 2 MiB
  for (std::size_t piece = std::size_t(64) << 30; piece >= 2 << 20;) {
    void* pointer = nullptr;
    if (cudaMalloc(&pointer, piece) == cudaSuccess)
      hog.push_back(pointer);
    else
      piece /= 2;
  }
  (void)cudaGetLastError();
  EXPECT_EQ(isthmus_tensor_parallel_init(n, places.data(), nullptr, nullptr), nullptr);
  EXPECT_NE(last_error().find("memory"), std::string::npos) << last_error();
  for (void* pointer : hog) check(cudaFree(pointer));
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

INSTANTIATE_TEST_SUITE_P(tensor_parallel, devices, ::testing::Range(2, 9),
                         [](const auto& info) { return "on_" + std::to_string(info.param); });

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (device_count() < 2) {
    std::puts("SKIPPED: fewer than two CUDA devices");
    return 77;
  }
  return RUN_ALL_TESTS();
}
