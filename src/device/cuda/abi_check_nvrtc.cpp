// Checks runtime_compiler.def against NVRTC's header, if it is installed. Generates no code.
#include <nvrtc.h>

#include "base/abi_check.hpp"

#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, hip) \
  static_assert(isthmus::matches_abi<result(*) arguments>(nvrtc##cuda));
#include "device/runtime_compiler.def"
static_assert(NVRTC_SUCCESS == 0);
