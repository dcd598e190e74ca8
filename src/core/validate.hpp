// Checks an operation of one rank against the collective table (isthmus/collectives.def) before
// the operation starts.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus {

struct validation_scope {
  int rank;
  int size;
  isthmus_platform platform;
  bool is_grouped;            // a rank may send to itself only inside a group
  std::uint32_t collectives;  // collectives that the communicator accepts, one bit each; 0: all
};

// Thread safety: any thread.
// Errors: throws error (INVALID_ARGUMENT or INVALID_USAGE) with argument, value, rule and hint.
void validate(const isthmus_operation& operation, const validation_scope& scope);

// Runs the subset of checks that explain needs: enumerations and root, but not buffers.
void validate_shape(const isthmus_operation& operation, const validation_scope& scope);

}  // namespace isthmus
