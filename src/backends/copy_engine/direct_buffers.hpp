// Determines whether and where peers can access the user buffers of a call.
#pragma once

#include <isthmus/backend.h>

#include <vector>

#include "backends/copy_engine/copy_algorithm.hpp"
#include "base/block_map.hpp"

namespace isthmus::copy_engine {

// Addresses of the peers' user buffers, if all of them are in the symmetric heap.
struct direct_buffers {
  bool is_valid = false;               // if false, the other members are undefined
  std::vector<std::byte*> addresses;   // by peer: the part of its buffer that this rank reads or writes
  bool needs_own_block_first = false;  // this rank first copies its block to its receive buffer
  std::uint64_t heap_position = 0;     // identifies block and offset; equal on all ranks
};

// Returns the reason why a collective can never access user buffers directly (zero_copy or push), or nullptr if
// it depends on the buffers.
const char* unsupported_direct_reason(isthmus_collective collective);

// Fills `buffers` in for algorithm zero_copy or push. buffers.is_valid is false if this rank's buffers are not
// in the symmetric heap. A rank computes its peers' addresses from its own, so every rank must use the same
// offset of the same block; the tags of the signals verify it.
void find_direct_buffers(const isthmus_backend_context& context, const isthmus_operation& operation,
                         const block_map& blocks, copy_algorithm algorithm, direct_buffers& buffers);

}  // namespace isthmus::copy_engine
