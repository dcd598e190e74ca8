// C entry points of memory.h for the symmetric heap.
#include <isthmus/memory.h>

#include "base/arguments.hpp"
#include "core/communicator.hpp"
#include "core/handles.hpp"

isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                 void** pointer) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "memory_allocate_symmetric", "pointer", pointer,
                              "pass the address of the variable that receives the block");
    *pointer = nullptr;
    *pointer = isthmus::handle_table::instance().find(communicator).allocate_symmetric(bytes);
  });
}

isthmus_status isthmus_memory_peer(isthmus_communicator communicator, const void* pointer, int rank,
                                   void** peer) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "memory_peer", "peer", peer,
                              "pass the address of the variable that receives the pointer");
    *peer = nullptr;
    isthmus::communicator& owner = isthmus::handle_table::instance().find(communicator);
    if (rank < 0 || rank >= owner.ranks().size)
      throw isthmus::invalid_argument(
          ISTHMUS_HERE, fmt::format("memory_peer: rank = {} must be in [0, {})", rank, owner.ranks().size),
          "pass the rank of this communicator whose block you want to access");
    isthmus_heap_block block{};
    std::uint64_t offset = 0;
    if (!owner.heap().find(pointer, 1, &block, &offset))
      throw isthmus::invalid_argument(
          ISTHMUS_HERE,
          fmt::format(
              "memory_peer: pointer = {} must lie in a live block of this communicator's symmetric heap",
              pointer),
          "allocate it with isthmus_memory_allocate_symmetric");
    void* const base = block.peers[rank];
    *peer = base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
  });
}

isthmus_status isthmus_memory_free_symmetric(isthmus_communicator communicator, void* pointer) {
  return isthmus::guard([&] {
    isthmus::communicator& owner = isthmus::handle_table::instance().find(communicator);
    if (pointer != nullptr) owner.free_symmetric(pointer);
  });
}
