#include "tensor_parallel_ranks.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>

namespace tensor_parallel_test {
namespace {

// A temporary configuration file whose only rule selects one algorithm for all sizes.
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

}  // namespace

std::string last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info.message;
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 8) : 0;
}

device_ranks::device_ranks(int n, std::uint64_t bytes, isthmus_wire wire, std::string_view algorithm,
                           double timeout_s)
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
  const std::vector<isthmus_stream> stream_handles(streams.begin(), streams.end());
  if (isthmus_tensor_parallel_create(n, devices.data(), stream_handles.data(), &options, &handle) !=
      ISTHMUS_SUCCESS)
    throw std::runtime_error("create: " + last_error());
}

device_ranks::~device_ranks() {
  isthmus_tensor_parallel_destroy(handle);
  for (int rank = 0; rank < m_n; ++rank) {
    (void)cudaSetDevice(rank);
    (void)cudaFree(memory[rank]);
    (void)cudaStreamDestroy(streams[rank]);
  }
}

INSTANTIATE_TEST_SUITE_P(tensor_parallel, devices, ::testing::Range(2, 9),
                         [](const auto& info) { return "on_" + std::to_string(info.param); });

}  // namespace tensor_parallel_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (tensor_parallel_test::device_count() < 2) {
    std::puts("SKIPPED: fewer than two CUDA devices");
    return 77;
  }
  return RUN_ALL_TESTS();
}
