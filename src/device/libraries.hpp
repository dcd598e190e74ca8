// Names and search paths of the vendors' device libraries, and the environment variables that override them.
// (kernel_compiler.cpp contains those of the kernel compilers.)
#pragma once

#include "base/dynamic_library.hpp"

namespace isthmus {

inline constexpr const char* cuda_driver_name = "libcuda.so.1";

inline library_search_request cuda_driver_library() {
  library_search_request search;
  search.variable = "ISTHMUS_CUDA_DRIVER_LIBRARY";
  search.names = {cuda_driver_name};
  return search;
}

inline library_search_request cuda_runtime_library() {
  library_search_request search;
  search.variable = "ISTHMUS_CUDA_RUNTIME_LIBRARY";
  search.names = {"libcudart.so.13", "libcudart.so.12"};
  search.wheel_folders = {"nvidia/cu13/lib", "nvidia/cuda_runtime/lib"};
  search.system_folders = {"/usr/local/cuda/lib64"};
  return search;
}

// The HIP driver and runtime are a single library.
inline library_search_request hip_library() {
  library_search_request search;
  search.variable = "ISTHMUS_HIP_RUNTIME_LIBRARY";
  search.names = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
  search.wheel_folders = {"torch/lib", "_rocm_sdk_core/lib"};
  search.system_folders = {"/opt/rocm/lib"};
  return search;
}

}  // namespace isthmus
