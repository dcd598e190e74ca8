// Helpers for the tests of tensor_parallel.h on real devices.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <isthmus/tensor_parallel.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tensor_parallel_test {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// Message of the calling thread's most recent failure.
std::string last_error();

// Number of devices, at most 8.
int device_count();

inline constexpr const char* default_algorithm = "";
inline constexpr const char* zero_copy = "two_shot_zero_copy";

// n devices, each with a stream and a buffer, and their handle.
class device_ranks {
 public:
  device_ranks(int n, std::uint64_t bytes, isthmus_wire wire, std::string_view algorithm = default_algorithm,
               double timeout_s = 30);
  ~device_ranks();
  device_ranks(const device_ranks&) = delete;

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
    return isthmus_tensor_parallel_allreduce(handle, pointers, count, type, active) == ISTHMUS_SUCCESS;
  }
  void wait() {
    for (cudaStream_t stream : streams) check(cudaStreamSynchronize(stream));
  }
  int size() const { return m_n; }
  std::byte* tensor(int rank, std::size_t offset) const {
    return memory[rank] + offset + static_cast<std::size_t>(rank) * skew_bytes;
  }

  std::size_t skew_bytes = 0;  // the offset of rank r's tensor in its buffer is r times this value
  std::vector<cudaStream_t> streams;
  std::vector<std::byte*> memory;
  isthmus_tensor_parallel handle = nullptr;

 private:
  int m_n;
};

// Parameterized by the number of devices.
class devices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (device_count() < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
};

}  // namespace tensor_parallel_test
