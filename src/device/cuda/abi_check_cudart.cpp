// Checks functions.def against the header of the CUDA runtime, if it is installed. Generates no code.
#include <cuda_runtime_api.h>

#include "base/abi_check.hpp"
#include "device/gpu/functions.hpp"

namespace isthmus::gpu {

constexpr undeclared none, cudanone;

#define ISTHMUS_GPU_FUNCTION(member, result, arguments, driver, runtime, hip) \
  static_assert(matches_abi<decltype(gpu_functions::member)>(cuda##runtime));
#define ISTHMUS_GPU_CONSTANT(type, name, value, driver, runtime, hip) static_assert(name == runtime);
#include "device/gpu/functions.def"

}  // namespace isthmus::gpu
