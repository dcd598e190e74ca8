// Checks functions.def and functions.hpp against the headers of HIP and HIPRTC, if they are installed. Generates no code.
#include "base/abi_check.hpp"

#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#include "device/gpu/functions.hpp"

namespace isthmus::gpu {

constexpr undeclared none, hipnone, hiprtcnone;
// The header overloads these functions with templates.
constexpr auto hipMalloc = static_cast<hipError_t (*)(void**, size_t)>(&::hipMalloc);
constexpr auto hipMallocAsync = static_cast<hipError_t (*)(void**, size_t, hipStream_t)>(&::hipMallocAsync);
constexpr auto hipHostMalloc = static_cast<hipError_t (*)(void**, size_t, unsigned)>(&::hipHostMalloc);
constexpr auto hipEventRecord = static_cast<hipError_t (*)(hipEvent_t, hipStream_t)>(&::hipEventRecord);

#define ISTHMUS_GPU_FUNCTION(member, result, arguments, driver, runtime, amd) \
  static_assert(matches_abi<decltype(gpu_functions::member)>(hip##amd));
#define ISTHMUS_GPU_CONSTANT(type, name, value, driver, runtime, amd) static_assert(name == amd);
#include "device/gpu/functions.def"

static_assert(sizeof(ipc_handle) == sizeof(hipIpcMemHandle_t));

#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, amd) \
  static_assert(matches_abi<result(*) arguments>(hiprtc##amd));
#include "device/gpu/functions.def"
static_assert(HIPRTC_SUCCESS == 0);

}  // namespace isthmus::gpu
