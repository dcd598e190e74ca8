// The engine of an MPI family: the functions that the preloaded library calls instead of MPI's. Compiled once
// for each family with its own mpi.h.
#include <mpi.h>

#include <tuple>

#include "frontends/mpi/data_movement.hpp"
#include "frontends/mpi/engine_abi.hpp"
#include "frontends/mpi/reductions.hpp"

namespace isthmus::mpi_shim {
namespace {

// C entry point of a function whose last argument is the communicator.
template <auto Function>
any_function guarded_entry() {
  constexpr auto on_exception = [](const auto&... arguments) {
    return raise_error(std::get<sizeof...(arguments) - 1>(std::tie(arguments...)), MPI_ERR_NO_MEM);
  };
  return preload::guarded_entry<Function, on_exception>();
}

template <typename Api>
void fill_table(any_function* table) {
#define MPI_FUNCTION(name, Name, parameters) \
  table[static_cast<int>(mpi_function::mpi_##name)] = guarded_entry<&handle_##name<Api>>();
  ISTHMUS_MPI_COUNTED_FUNCTIONS(MPI_FUNCTION)
#undef MPI_FUNCTION
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
