// The engine of an MPI family: the functions that the preloaded library calls instead of MPI's. Compiled once
// for each family with its own mpi.h.
#include <mpi.h>

#include <tuple>

#include "frontends/mpi/data_movement_v.hpp"
#include "frontends/mpi/engine_abi.hpp"
#include "frontends/mpi/reductions.hpp"

namespace isthmus::mpi_shim {
namespace {

// C entry point of a function whose last argument is the communicator. Exceptions must not propagate to
// callers of MPI.
template <auto Function>
struct exception_guard;
template <typename... Arguments, int (*Function)(Arguments...)>
struct exception_guard<Function> {
  static int call(Arguments... arguments) noexcept try { return Function(arguments...); } catch (...) {
    return raise_error(std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...)), MPI_ERR_NO_MEM);
  }
};

template <auto Function>
any_function guarded_entry() {
  return reinterpret_cast<any_function>(&exception_guard<Function>::call);
}

template <typename Api>
void fill_table(any_function* table) {
  const auto set = [&](mpi_function function, any_function entry) {
    table[static_cast<int>(function)] = entry;
  };
  set(mpi_function::mpi_bcast, guarded_entry<&handle_bcast<Api>>());
  set(mpi_function::mpi_reduce, guarded_entry<&handle_reduce<Api>>());
  set(mpi_function::mpi_allreduce, guarded_entry<&handle_allreduce<Api>>());
  set(mpi_function::mpi_reduce_scatter, guarded_entry<&handle_reduce_scatter<Api>>());
  set(mpi_function::mpi_reduce_scatter_block, guarded_entry<&handle_reduce_scatter_block<Api>>());
  set(mpi_function::mpi_allgather, guarded_entry<&handle_allgather<Api>>());
  set(mpi_function::mpi_allgatherv, guarded_entry<&handle_allgatherv<Api>>());
  set(mpi_function::mpi_gather, guarded_entry<&handle_gather<Api>>());
  set(mpi_function::mpi_gatherv, guarded_entry<&handle_gatherv<Api>>());
  set(mpi_function::mpi_scatter, guarded_entry<&handle_scatter<Api>>());
  set(mpi_function::mpi_scatterv, guarded_entry<&handle_scatterv<Api>>());
  set(mpi_function::mpi_alltoall, guarded_entry<&handle_alltoall<Api>>());
  set(mpi_function::mpi_alltoallv, guarded_entry<&handle_alltoallv<Api>>());
}

engine_table make_table() {
  engine_table table{};
  table.struct_bytes = sizeof table;
  table.int_count_functions[static_cast<int>(mpi_function::mpi_barrier)] = guarded_entry<&handle_barrier>();
  fill_table<small_counts>(table.int_count_functions);
  fill_table<large_counts>(table.large_count_functions);
  return table;
}

}  // namespace
}  // namespace isthmus::mpi_shim

extern "C" __attribute__((visibility("default"))) const isthmus::mpi_shim::engine_table*
isthmus_mpi_engine_v1() {
  static const isthmus::mpi_shim::engine_table table = isthmus::mpi_shim::make_table();
  return &table;
}
