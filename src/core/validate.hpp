// Checks one operation against THE TABLE, from the point of view of one rank, before anything starts.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus {

struct validation_scope {
  int rank;
  int size;
  isthmus_platform platform;
  bool is_grouped;               // inside a group a rank may send to itself
  std::uint32_t collectives;  // that the communicator was made for, a bit each; 0: all
};

// Throws error (INVALID_ARGUMENT or INVALID_USAGE) that names argument, value, rule and hint. Thread-safe.
void validate(const isthmus_operation& operation, const validation_scope& scope);

// The part of it that explain needs: enumerations and root, no buffers.
void validate_shape(const isthmus_operation& operation, const validation_scope& scope);

}  // namespace isthmus
