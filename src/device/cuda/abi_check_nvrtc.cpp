// Checks runtime_compiler_api.hpp against NVRTC's header, if it is installed. Generates no code.
#include <nvrtc.h>

#include "base/abi_check.hpp"
#include "device/runtime_compiler_api.hpp"

namespace isthmus {

static_assert(matches_abi<decltype(runtime_compiler_api::version)>(&nvrtcVersion));
static_assert(matches_abi<decltype(runtime_compiler_api::error_string)>(&nvrtcGetErrorString));
static_assert(matches_abi<decltype(runtime_compiler_api::create)>(&nvrtcCreateProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::destroy)>(&nvrtcDestroyProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::compile)>(&nvrtcCompileProgram));
static_assert(matches_abi<decltype(runtime_compiler_api::log_bytes)>(&nvrtcGetProgramLogSize));
static_assert(matches_abi<decltype(runtime_compiler_api::log)>(&nvrtcGetProgramLog));
static_assert(matches_abi<decltype(runtime_compiler_api::code_bytes)>(&nvrtcGetCUBINSize));
static_assert(matches_abi<decltype(runtime_compiler_api::code)>(&nvrtcGetCUBIN));
static_assert(matches_abi<decltype(runtime_compiler_api::ptx_bytes)>(&nvrtcGetPTXSize));
static_assert(matches_abi<decltype(runtime_compiler_api::ptx)>(&nvrtcGetPTX));
static_assert(matches_abi<decltype(runtime_compiler_api::count_architectures)>(&nvrtcGetNumSupportedArchs));
static_assert(matches_abi<decltype(runtime_compiler_api::architectures)>(&nvrtcGetSupportedArchs));
static_assert(compiler_success == NVRTC_SUCCESS);

}  // namespace isthmus
