// MPI's datatypes and operations as Isthmus sees them.
#pragma once

#include <isthmus/types.h>
#include <mpi.h>

#include <cstdint>

namespace isthmus::mpi_shim {

// A datatype in memory. Dense: elements follow each other without a gap, in the order of their bytes.
struct datatype_layout {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::uint64_t bytes = 0;
  std::int64_t extent = 0;
  bool is_dense = true;
};

// False for what is no datatype; MPI then says what is wrong with it.
bool find_layout(MPI_Datatype type, datatype_layout& result);

// A predefined datatype and operation that Isthmus computes as MPI allows.
struct reduction_mapping {
  isthmus_datatype type;
  isthmus_reduction_op op;
  std::uint64_t values_per_element;  // in one element: 2 for complex types
  std::uint64_t bytes;    // of one element
};

enum class reduction_support { supported, unsupported_type, unsupported_op };
// From what MPI requires to be equal on all ranks.
reduction_support find_reduction(MPI_Datatype type, MPI_Op op, reduction_mapping& result);

}  // namespace isthmus::mpi_shim
