// The memory of one rank for one call. It is filled with a pattern, guarded on all sides and compared byte by
// byte with its earlier content after the call, so that every stray write is detected.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "test_case.hpp"

namespace conformance {

// The buffer addresses of one rank. NULL if the collective does not use the rank's buffer.
struct placement {
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

// Computes addresses in `memory`, which has rank_buffers::required_bytes bytes and is neither read nor written.
placement place(const test_case& test, const oracle::operation_shape& shape, int rank, std::byte* memory);

class rank_buffers {
 public:
  // Lays out the call in `memory` (required_bytes bytes) and writes the fill pattern and the inputs.
  rank_buffers(const test_case& test, const oracle::operation_shape& shape, int rank,
               std::span<std::byte> memory);

  // Equal on all ranks, so that buffers in the symmetric heap have the same offset on every rank.
  static std::size_t required_bytes(const test_case& test, const oracle::operation_shape& shape);

  const placement& addresses() const { return m_addresses; }
  const void* send_buf() const { return m_addresses.send; }
  void* recv_buf() const { return m_addresses.recv; }

  // Describes the first error, if any: a changed byte outside the result, or a wrong result.
  // `results` false: the call must not have written anything. `values` false: checks only for stray writes.
  // `steps_in_type`: see oracle/check.hpp.
  std::optional<std::string> find_error(bool results, bool values, bool steps_in_type) const;

  // Overwrites the inputs, as a caller may do as soon as a call on the host platform returns.
  void reuse_send_buffer();

  // Hash of the results in the receive buffer.
  std::uint64_t hash() const;

 private:
  void write_inputs();
  std::vector<std::pair<std::size_t, std::size_t>> result_ranges() const;  // byte offsets, ascending

  test_case m_test;
  oracle::operation_shape m_shape;
  int m_rank;
  std::span<std::byte> m_memory;
  std::vector<std::byte> m_before;
  placement m_addresses;
  std::size_t m_send_bytes;
};

}  // namespace conformance
