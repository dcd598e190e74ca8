// Differences between NCCL and RCCL: names, versions and install locations.
#pragma once

#include <isthmus/backend.h>

#include "backends/nccl_family/collectives.hpp"
#include "base/dynamic_library.hpp"
#include "device/gpu/functions.hpp"
#include "nccl/api.hpp"

namespace isthmus::nccl_family {

// RCCL uses the same symbols and result codes.
constexpr result_info nccl_result_info(int result) {
  switch (static_cast<native_result>(result)) {
    case native_success: return {ISTHMUS_SUCCESS, "ncclSuccess", nullptr};
    case native_unhandled_device_error:
      return {
          ISTHMUS_ERROR_BACKEND, "ncclUnhandledCudaError",
          "a device call inside the library failed; check earlier kernels for faults and set NCCL_DEBUG=WARN"};
    case native_system_error:
      return {ISTHMUS_ERROR_BACKEND, "ncclSystemError",
              "a system call inside the library failed; check the size of /dev/shm and the network interfaces, "
              "and set NCCL_DEBUG=WARN"};
    case native_internal_error:
      return {ISTHMUS_ERROR_BACKEND, "ncclInternalError",
              "set NCCL_DEBUG=WARN and check the output of this rank"};
    case native_invalid_argument:
      return {ISTHMUS_ERROR_BACKEND, "ncclInvalidArgument",
              "pass buffers on the communicator's device and set NCCL_DEBUG=WARN"};
    case native_invalid_usage:
      return {ISTHMUS_ERROR_BACKEND, "ncclInvalidUsage",
              "give each rank its own device and use the same order of calls on all ranks"};
    case native_remote_error:
      return {ISTHMUS_ERROR_REMOTE, "ncclRemoteError", "another rank failed or exited; check its messages"};
    case native_in_progress: return {ISTHMUS_ERROR_BACKEND, "ncclInProgress", nullptr};
  }
  return {ISTHMUS_ERROR_BACKEND, "unknown result code", nullptr};
}

inline constexpr const char* symbol_prefix = "nccl";
inline constexpr int minimum_version = 21801;  // first version with ncclCommSplit and a shared abort flag
inline constexpr int float8_version = 22400;

// Non-blocking; children share resources and the abort flag. nccl_state.hpp explains why.
inline native_config setup_config() {
  native_config config;
  config.blocking = 0;
  config.split_share = 1;
  return config;
}
inline native_config blocking_config() {
  native_config config;
  config.blocking = 1;
  return config;
}

struct vendor_traits {
  const char* name;
  const char* display_name;
  const char* description;
  const char* device_prefix;
  const char* install_hint;
  const char* runtime_name;
  isthmus_platform platform;
  int capability_attribute;  // -1: none; HIP's attribute numbers differ between versions
  int float8_capability;     // the library reduces fp8 on devices of this capability and newer
  library_search_request library_search;
};

inline const vendor_traits nccl_traits{
    .name = "nccl",
    .display_name = "NCCL",
    .description = "NVIDIA's collective communication library on CUDA streams",
    .device_prefix = "cuda",
    .install_hint =
        "pip install nvidia-nccl-cu13, or name the file in backend.nccl.library or ISTHMUS_NCCL_LIBRARY",
    .runtime_name = "CUDA runtime",
    .platform = ISTHMUS_PLATFORM_CUDA,
    .capability_attribute = gpu::attribute_capability_major,
    .float8_capability = 9,  // Hopper
    .library_search = {.variable = "ISTHMUS_NCCL_LIBRARY",
                       .names = {"libnccl.so.2"},
                       .wheel_folders = {"nvidia/nccl/lib"},
                       .system_folders = {"/usr/local/cuda/lib64", "/usr/local/lib", "/opt/nvidia/nccl/lib"},
                       .real_path_symbol = "isthmus_nccl_library"}};  // src/frontends/nccl

inline const vendor_traits rccl_traits{
    .name = "rccl",
    .display_name = "RCCL",
    .description = "AMD's collective communication library on HIP streams",
    .device_prefix = "hip",
    .install_hint = "install ROCm's rccl, or name the file in backend.rccl.library or ISTHMUS_RCCL_LIBRARY",
    .runtime_name = "HIP runtime",
    .platform = ISTHMUS_PLATFORM_HIP,
    .capability_attribute = -1,
    .float8_capability = 0,
    .library_search = {.variable = "ISTHMUS_RCCL_LIBRARY",
                       .names = {"librccl.so.1"},
                       .wheel_folders = {"torch/lib", "_rocm_sdk_libraries/lib"},
                       .system_folders = {"/opt/rocm/lib"}}};

}  // namespace isthmus::nccl_family
