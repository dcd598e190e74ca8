// One rank of a program that uses NCCL without knowledge of Isthmus: its communicator, streams and memory,
// random cases of the conformance suite, and their results.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/rank_buffers.hpp"
#include "conformance/test_case.hpp"

namespace nccl_program {

// Exits with the name of the function if `code` is not success.
void check(int code, const char* function);

// The calls that all ranks make, in this order, derived from a seed.
std::vector<conformance::test_case> random_calls(std::uint64_t seed, int size, int n);

class rank_runner {
 public:
  rank_runner(int rank, int size, int device);
  ~rank_runner();
  rank_runner(const rank_runner&) = delete;
  rank_runner& operator=(const rank_runner&) = delete;

  void* comm = nullptr;
  int rank() const { return m_rank; }
  int size() const { return m_size; }
  // Discards earlier calls. Each test uses one of two streams, chosen by its seed.
  void prepare(const std::vector<conformance::test_case>& tests);
  // Issues the i-th prepared call. Returns an NCCL result code.
  int issue(std::size_t i);
  void synchronize();
  // Returns the number of wrong results. Prints each one to standard output.
  int wrong();

  void* stream(std::size_t i) const { return m_streams[i]; }

 private:
  struct pending_call {
    conformance::test_case test;
    oracle::operation_shape shape;
    std::unique_ptr<conformance::rank_buffers> buffers;
    void* memory;
  };
  void release();

  int m_rank, m_size, m_device;
  std::array<void*, 2> m_streams{};
  std::vector<pending_call> m_calls;
};

}  // namespace nccl_program
