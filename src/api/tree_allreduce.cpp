// C entry point of tree_allreduce.h.
#include "operators/tree_allreduce/tree_allreduce.hpp"

#include "base/error.hpp"
#include "core/handles.hpp"

isthmus_status isthmus_tree_allreduce(const void* leaves, uint64_t leaf_count, void* recv_buf, uint64_t count,
                                      isthmus_datatype datatype, isthmus_communicator communicator) {
  return isthmus::guard([&] {
    isthmus::tree_allreduce(isthmus::handle_table::instance().find(communicator), leaves, leaf_count, recv_buf,
                            count, datatype);
  });
}
