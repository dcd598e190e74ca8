// The memory of one rank for one call: poisoned, guarded on all sides, and compared byte by byte afterwards
// with what it was, so that a stray write is found wherever it goes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "test_case.hpp"

namespace conformance {

// Where the buffers of one rank lie; NULL where THE TABLE says that the rank's buffer is not used.
struct placement {
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

// In `memory` of rank_buffers::bytes_needed bytes, of which none is read or written.
placement place(const test_case& test, const oracle::operation_shape& shape, int rank, std::byte* memory);

class rank_buffers {
 public:
  // Lays the call out in `memory` (bytes_needed of it) and writes poison and inputs.
  rank_buffers(const test_case& test, const oracle::operation_shape& shape, int rank, std::span<std::byte> memory);

  // The same on all ranks, so that buffers in the symmetric heap lie at the same offset everywhere.
  static std::size_t bytes_needed(const test_case& test, const oracle::operation_shape& shape);

  const placement& addresses() const { return m_addresses; }
  const void* send_buf() const { return m_addresses.send; }
  void* recv_buf() const { return m_addresses.recv; }

  // Nothing, or what is wrong: a changed byte outside the result, or a wrong result. `results` false:
  // the call must have written nothing at all. `values` false: only stray writes are looked for.
  // `steps_in_type`: see oracle/check.hpp.
  std::optional<std::string> find_error(bool results, bool values, bool steps_in_type) const;

  // Overwrites the inputs, as a caller may as soon as a call on the host platform returned.
  void reuse_send_buffer();

  // A hash of the receive buffer's results.
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
