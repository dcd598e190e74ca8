// One collective call on all ranks: its shape, its device buffers and the check of its result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/check.hpp"
#include "oracle/inputs.hpp"
#include "oracle/movement.hpp"
#include "test_ranks.hpp"

namespace gpu {

struct table_row {
  isthmus_collective collective;
  const char* name;
  bool rooted;
  bool reduces;
  bool can_be_in_place;
};
// All rows of the collective table except barrier, which has no result.
const std::vector<table_row>& table();

// Uneven blocks with gaps, some empty, for the collectives that take counts.
oracle::operation_shape make_shape(isthmus_collective collective, int size, int root, std::uint64_t count);

struct scenario {
  oracle::operation_shape shape;
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  isthmus_reduction_op op = ISTHMUS_SUM;
  bool in_place = false;
  std::uint64_t seed = 1;
};

// One rank's buffers and operations of a scenario. send and recv are tested as a ring with two operations.
class rank_call {
 public:
  // Fills the input buffer, and sets the output buffer to a fill pattern.
  rank_call(const scenario& setup, member& self);
  const std::vector<isthmus_operation>& operations() const { return m_operations; }
  // Enqueues the operation, or both operations as a group.
  isthmus_status start() const;
  // Fills the buffers again with another seed.
  void refill(std::uint64_t seed);
  // Waits for the stream. Returns "" or a description of the first wrong element.
  std::string error() const;

 private:
  std::uint64_t own_offset() const;  // of the block that in-place buffers share
  void build();

  scenario m_setup;
  member& m_self;
  std::size_t m_element;
  std::uint64_t m_send_elements, m_recv_elements;
  buffer m_memory, m_separate;
  std::vector<isthmus_operation> m_operations;
};

}  // namespace gpu
