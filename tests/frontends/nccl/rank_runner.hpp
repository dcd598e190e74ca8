// One rank of a program that uses NCCL and knows nothing of Isthmus: its communicator, streams and memory,
// random calls of the conformance suite, and what came of them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/rank_buffers.hpp"
#include "conformance/test_case.hpp"

namespace nccl_program {

// Fails the program, with the name of the function.
void check(int code, const char* function);

// The calls that all ranks make, in this order, from a seed.
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
  // Forgets what was issued before. `test` goes to one of two streams, as its seed says.
  void prepare(const std::vector<conformance::test_case>& tests);
  // The i-th call that was prepared; NCCL's code.
  int issue(std::size_t i);
  void synchronize();
  // Wrong results of what was prepared; each is told on standard output.
  int wrong();

  void* stream(std::size_t i) const { return m_streams[i]; }

 private:
  struct placed {
    conformance::test_case test;
    oracle::operation_shape shape;
    std::unique_ptr<conformance::rank_buffers> buffers;
    void* memory;
  };
  void release();

  int m_rank, m_size, m_device;
  std::array<void*, 2> m_streams{};
  std::vector<placed> m_calls;
};

}  // namespace nccl_program
