// Mapping of MPI datatypes and operations to Isthmus.
#pragma once

#include <isthmus/types.h>
#include <mpi.h>

#include <cstdint>

namespace isthmus::mpi_shim {

// Memory layout of a datatype. Dense: no gaps within or between elements, and bytes are in memory order.
struct datatype_layout {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::uint64_t bytes = 0;
  std::int64_t extent = 0;
  bool is_dense = true;
};

// Returns false if `type` is not a valid datatype. The caller passes the call to MPI, which reports the error.
bool find_layout(MPI_Datatype type, datatype_layout& result);

// A predefined datatype and operation that Isthmus can reduce under the rules of MPI.
struct reduction_mapping {
  isthmus_datatype type;
  isthmus_reduction_op op;
  std::uint64_t values_per_element;  // per element: 2 for complex types
  std::uint64_t bytes;               // of one element
};

enum class reduction_support { supported, unsupported_type, unsupported_op };
// Uses only arguments that MPI requires to be equal on all ranks.
reduction_support find_reduction(MPI_Datatype type, MPI_Op op, reduction_mapping& result);

}  // namespace isthmus::mpi_shim
