// The table of an MPI family: what the preloaded library calls in the place of MPI's functions. Compiled once
// for each family, against its own mpi.h.
#include <mpi.h>

#include <tuple>

#include "frontends/mpi/calls.hpp"
#include "frontends/mpi/movement_v.hpp"
#include "frontends/mpi/reductions.hpp"

namespace isthmus::mpi_shim {
namespace {

// C's face of a function whose last argument is the communicator: nothing may be thrown through MPI's callers.
template <auto Function>
struct guarded;
template <typename... Arguments, int (*Function)(Arguments...)>
struct guarded<Function> {
  static int call(Arguments... arguments) noexcept try { return Function(arguments...); } catch (...) {
    return raise(std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...)), MPI_ERR_NO_MEM);
  }
};

template <auto Function>
any_function entry_of() {
  return reinterpret_cast<any_function>(&guarded<Function>::call);
}

template <typename Api>
void fill(any_function* to) {
  const auto set = [&](call which, any_function function) { to[static_cast<int>(which)] = function; };
  set(call::mpi_bcast, entry_of<&take_bcast<Api>>());
  set(call::mpi_reduce, entry_of<&take_reduce<Api>>());
  set(call::mpi_allreduce, entry_of<&take_allreduce<Api>>());
  set(call::mpi_reduce_scatter, entry_of<&take_reduce_scatter<Api>>());
  set(call::mpi_reduce_scatter_block, entry_of<&take_reduce_scatter_block<Api>>());
  set(call::mpi_allgather, entry_of<&take_allgather<Api>>());
  set(call::mpi_allgatherv, entry_of<&take_allgatherv<Api>>());
  set(call::mpi_gather, entry_of<&take_gather<Api>>());
  set(call::mpi_gatherv, entry_of<&take_gatherv<Api>>());
  set(call::mpi_scatter, entry_of<&take_scatter<Api>>());
  set(call::mpi_scatterv, entry_of<&take_scatterv<Api>>());
  set(call::mpi_alltoall, entry_of<&take_alltoall<Api>>());
  set(call::mpi_alltoallv, entry_of<&take_alltoallv<Api>>());
}

engine_table make_table() {
  engine_table made{};
  made.struct_bytes = sizeof made;
  made.small[static_cast<int>(call::mpi_barrier)] = entry_of<&take_barrier>();
  fill<small_counts>(made.small);
  fill<large_counts>(made.large);
  return made;
}

}  // namespace
}  // namespace isthmus::mpi_shim

extern "C" __attribute__((visibility("default"))) const isthmus::mpi_shim::engine_table*
isthmus_mpi_engine_v1() {
  static const isthmus::mpi_shim::engine_table table = isthmus::mpi_shim::make_table();
  return &table;
}
