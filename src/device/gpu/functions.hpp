// Function table of the CUDA driver, the CUDA runtime or HIP, which are loaded at run time, and where to find
// these libraries. Generated from functions.def.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dynamic_library.hpp"
#include "device/driver.hpp"

namespace isthmus::gpu {

struct ipc_handle {
  char bytes[64];
};

using allocation = unsigned long long;
struct memory_location {
  int type, id;
};
struct allocation_properties {
  int type, handle_types;
  memory_location location;
  void* unused_on_linux;
  unsigned char compression, gpu_direct;
  unsigned short usage;
  unsigned char reserved[4];
};
struct access_description {
  memory_location location;
  int flags;
};
struct copy_attributes {
  int source_order;
  memory_location source_hint, destination_hint;
  unsigned flags;
};
// One operation of a batch of word operations (CUstreamBatchMemOpParams).
struct word_operation {
  int kind;
  void* word;
  std::uint64_t value;
  unsigned flags;
  std::uint64_t driver_data[2];
};

#define ISTHMUS_GPU_CONSTANT(type, name, value, ...) inline constexpr type name = value;
#include "device/gpu/functions.def"

// In the order of the columns of functions.def. HIP's driver and runtime are a single library.
enum class vendor_library { cuda_driver, cuda_runtime, hip };

inline constexpr const char* cuda_driver_name = "libcuda.so.1";

// Names and search paths of a library, and the environment variable that overrides them.
inline library_search_request library_search(vendor_library library) {
  switch (library) {
    case vendor_library::cuda_driver:
      return {.variable = "ISTHMUS_CUDA_DRIVER_LIBRARY",
              .names = {cuda_driver_name},
              .wheel_folders = {},
              .system_folders = {}};
    case vendor_library::cuda_runtime:
      return {.variable = "ISTHMUS_CUDA_RUNTIME_LIBRARY",
              .names = {"libcudart.so.13", "libcudart.so.12"},
              .wheel_folders = {"nvidia/cu13/lib", "nvidia/cuda_runtime/lib"},
              .system_folders = {"/usr/local/cuda/lib64"}};
    case vendor_library::hip:
      return {.variable = "ISTHMUS_HIP_RUNTIME_LIBRARY",
              .names = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
              .wheel_folders = {"torch/lib", "_rocm_sdk_core/lib"},
              .system_folders = {"/opt/rocm/lib"}};
  }
  return {};
}

// Functions that a library does not have are null.
struct gpu_functions {
#define ISTHMUS_GPU_FUNCTION(member, result, arguments, ...) result(*member) arguments = nullptr;
#include "device/gpu/functions.def"

  // Looks up the functions of `vendor` in the file. Returns the name of the first required function that is
  // missing, or "".
  std::string look_up(vendor_library vendor, const dynamic_library& file);
};

}  // namespace isthmus::gpu
