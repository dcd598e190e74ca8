// The C entry points of memory.h.
#include <isthmus/memory.h>

#include "runtime/communicator.hpp"
#include "runtime/error.hpp"
#include "runtime/handles.hpp"

isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                 void** pointer) {
  return isthmus::guard([&] {
    if (pointer == nullptr)
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                                "memory_allocate_symmetric: pointer is NULL",
                                "pass the address of the variable that receives the block");
    *pointer = nullptr;
    *pointer = isthmus::handle_table::instance().find(communicator).allocate_symmetric(bytes);
  });
}

isthmus_status isthmus_memory_free(isthmus_communicator communicator, void* pointer) {
  return isthmus::guard([&] {
    isthmus::communicator& owner = isthmus::handle_table::instance().find(communicator);
    if (pointer != nullptr) owner.free_symmetric(pointer);
  });
}
