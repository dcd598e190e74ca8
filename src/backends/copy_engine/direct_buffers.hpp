// Whether peers can reach the user's own buffers, and where.
#pragma once

#include <isthmus/backend.h>

#include <vector>

#include "backends/copy_engine/copy_algorithm.hpp"
#include "base/block_map.hpp"

namespace isthmus::copy_engine {

// Where the peers' buffers are when all of them are in the symmetric heap.
struct direct_buffers {
  bool is_valid = false;               // else nothing else here means anything
  std::vector<std::byte*> addresses;       // by peer: the part of its buffer that this rank fetches from or puts to
  bool needs_own_block_first = false;           // the own block must be in place before it is handed over
  std::uint64_t heap_position = 0;  // block and offset, equal on all ranks
};

// Why a collective never can use the users' buffers directly, for rules that name such an algorithm; nullptr
// where it depends on the buffers.
const char* reason_never_direct(isthmus_collective collective);

// `how` is zero_copy or push. Fills `buffers`; buffers.found is false where this rank's are not in the
// symmetric heap. A rank computes its peers' addresses from its own, so every rank has to use the same place of
// the same block: the tags of the signals prove it.
void find_direct_buffers(const isthmus_backend_context& context, const isthmus_operation& operation,
                         const block_map& blocks, copy_algorithm algorithm, direct_buffers& buffers);

}  // namespace isthmus::copy_engine
