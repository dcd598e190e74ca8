// Checks functions.def and functions.hpp against the headers of the CUDA driver, the CUDA runtime and NVRTC. Built only if
// the headers are installed, and generates no code.
#include "base/abi_check.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#if __has_include(<nvrtc.h>)  // may be installed separately
#include <nvrtc.h>
#endif

#include "device/gpu/functions.hpp"

// The header replaces these names by those of newer versions with other signatures.
#undef cuMemcpyBatchAsync
#undef cuStreamGetCaptureInfo

namespace isthmus::gpu {

constexpr undeclared none, cunone, cuMemcpyBatchAsync, cuStreamGetCaptureInfo;
#if CUDA_VERSION < 13000
constexpr undeclared cuMemcpyBatchAsync_v2;
#endif
#if CUDA_VERSION < 12040
constexpr undeclared cuFuncLoad;
#endif
#if CUDA_VERSION < 12080
constexpr undeclared CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
#endif

#define ISTHMUS_GPU_FUNCTION(member, result, arguments, driver, runtime, hip) \
  static_assert(matches_abi<decltype(gpu_functions::member)>(cu##driver));
#define ISTHMUS_GPU_CONSTANT(type, name, value, driver, runtime, hip) static_assert(name == driver);
#include "device/gpu/functions.def"

static_assert(sizeof(word_operation) == sizeof(CUstreamBatchMemOpParams) &&
              offsetof(word_operation, word) == offsetof(CUstreamBatchMemOpParams, waitValue.address) &&
              offsetof(word_operation, value) == offsetof(CUstreamBatchMemOpParams, waitValue.value) &&
              offsetof(word_operation, flags) == offsetof(CUstreamBatchMemOpParams, writeValue.flags));
static_assert(sizeof(ipc_handle) == sizeof(CUipcMemHandle));
static_assert(sizeof(allocation_properties) == sizeof(CUmemAllocationProp) &&
              offsetof(allocation_properties, handle_types) ==
                  offsetof(CUmemAllocationProp, requestedHandleTypes) &&
              offsetof(allocation_properties, location) == offsetof(CUmemAllocationProp, location) &&
              offsetof(allocation_properties, compression) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(access_description) == sizeof(CUmemAccessDesc) &&
              offsetof(access_description, flags) == offsetof(CUmemAccessDesc, flags));
#if CUDA_VERSION >= 12080
static_assert(sizeof(copy_attributes) == sizeof(CUmemcpyAttributes) &&
              offsetof(copy_attributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint) &&
              offsetof(copy_attributes, flags) == offsetof(CUmemcpyAttributes, flags));
#endif

constexpr undeclared cudanone;

#define ISTHMUS_GPU_FUNCTION(member, result, arguments, driver, runtime, hip) \
  static_assert(matches_abi<decltype(gpu_functions::member)>(cuda##runtime));
#define ISTHMUS_GPU_CONSTANT(type, name, value, driver, runtime, hip) static_assert(name == runtime);
#include "device/gpu/functions.def"

#if __has_include(<nvrtc.h>)
#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, hip) \
  static_assert(matches_abi<result(*) arguments>(nvrtc##cuda));
#include "device/gpu/functions.def"
static_assert(NVRTC_SUCCESS == 0);
#endif

}  // namespace isthmus::gpu
