// C entry point of allreduce_rmsnorm.h.
#include "operators/allreduce_rmsnorm/allreduce_rmsnorm.hpp"

#include "base/error.hpp"
#include "core/handles.hpp"

isthmus_status isthmus_allreduce_rmsnorm(isthmus_communicator communicator,
                                         const isthmus_allreduce_rmsnorm_arguments* arguments) {
  return isthmus::guard(
      [&] { isthmus::allreduce_rmsnorm(isthmus::handle_table::instance().find(communicator), arguments); });
}
