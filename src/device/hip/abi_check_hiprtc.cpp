// Checks runtime_compiler_api.hpp against HIPRTC's header, if it is installed. Generates no code.
#include <hip/hiprtc.h>

#include "base/abi_check.hpp"
#include "device/runtime_compiler_api.hpp"

namespace isthmus {

static_assert(matches_abi<decltype(runtime_compiler_api::version)>(&hiprtcVersion));
static_assert(matches_abi<decltype(runtime_compiler_api::error_string)>(&hiprtcGetErrorString));
static_assert(matches_abi<decltype(runtime_compiler_api::create)>(&hiprtcCreateProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::destroy)>(&hiprtcDestroyProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::compile)>(&hiprtcCompileProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::log_bytes)>(&hiprtcGetProgramLogSize));
static_assert(matches_abi<decltype(runtime_compiler_api::log)>(&hiprtcGetProgramLog));
static_assert(matches_abi<decltype(runtime_compiler_api::code_bytes)>(&hiprtcGetCodeSize));
static_assert(matches_abi<decltype(runtime_compiler_api::code)>(&hiprtcGetCode));
static_assert(compiler_success == HIPRTC_SUCCESS);

}  // namespace isthmus
