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

struct common_traits {
  using unique_id = native_unique_id;
  static constexpr const char* symbol_prefix = "nccl";
  static constexpr int minimum_version = 21801;  // first version with ncclCommSplit and a shared abort flag
  static constexpr int float8_version = 22400;
  static constexpr result_info result_info_of(int result) { return nccl_result_info(result); }

  // Non-blocking; children share resources and the abort flag. nccl_state.hpp explains why.
  static native_config setup_config() {
    native_config config;
    config.blocking = 0;
    config.split_share = 1;
    return config;
  }
  static native_config blocking_config() {
    native_config config;
    config.blocking = 1;
    return config;
  }
};

struct nccl_traits : common_traits {
  static constexpr const char* name = "nccl";
  static constexpr const char* display_name = "NCCL";
  static constexpr const char* description = "NVIDIA's collective communication library on CUDA streams";
  static constexpr const char* device_prefix = "cuda";
  static constexpr const char* install_hint =
      "pip install nvidia-nccl-cu13, or name the file in backend.nccl.library or ISTHMUS_NCCL_LIBRARY";
  static constexpr const char* runtime_name = "CUDA runtime";
  static constexpr isthmus_platform platform = ISTHMUS_PLATFORM_CUDA;
  static constexpr int capability_attribute = gpu::attribute_capability_major;
  static constexpr int float8_capability = 9;  // NCCL reduces fp8 only on Hopper and newer

  static library_search_request library_search() {
    library_search_request search;
    search.variable = "ISTHMUS_NCCL_LIBRARY";
    search.real_path_symbol = "isthmus_nccl_library";  // src/frontends/nccl
    search.names = {"libnccl.so.2"};
    search.wheel_folders = {"nvidia/nccl/lib"};
    search.system_folders = {"/usr/local/cuda/lib64", "/usr/local/lib", "/opt/nvidia/nccl/lib"};
    return search;
  }
};

struct rccl_traits : common_traits {
  static constexpr const char* name = "rccl";
  static constexpr const char* display_name = "RCCL";
  static constexpr const char* description = "AMD's collective communication library on HIP streams";
  static constexpr const char* device_prefix = "hip";
  static constexpr const char* install_hint =
      "install ROCm's rccl, or name the file in backend.rccl.library or ISTHMUS_RCCL_LIBRARY";
  static constexpr const char* runtime_name = "HIP runtime";
  static constexpr isthmus_platform platform = ISTHMUS_PLATFORM_HIP;
  static constexpr int capability_attribute = -1;  // HIP's attribute numbers differ between versions
  static constexpr int float8_capability = 0;

  static library_search_request library_search() {
    library_search_request search;
    search.variable = "ISTHMUS_RCCL_LIBRARY";
    search.names = {"librccl.so.1"};
    search.wheel_folders = {"torch/lib", "_rocm_sdk_libraries/lib"};
    search.system_folders = {"/opt/rocm/lib"};
    return search;
  }
};

}  // namespace isthmus::nccl_family
