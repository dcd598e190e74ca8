// Checks runtime_compiler.def against HIPRTC's header, if it is installed. Generates no code.
#include <hip/hiprtc.h>

#include "base/abi_check.hpp"

constexpr isthmus::undeclared hiprtcnone;

#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, amd) \
  static_assert(isthmus::matches_abi<result(*) arguments>(hiprtc##amd));
#include "device/runtime_compiler.def"
static_assert(HIPRTC_SUCCESS == 0);
