// Function table of the CUDA driver, the CUDA runtime or HIP, which are loaded at run time, and where to find
// these libraries. Generated from functions.def.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

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

namespace isthmus {

// The CUDA or HIP runtime for plug-ins, loaded at run time. Plug-ins need the runtime because the vendors'
// collective libraries use its current device, and because the application's streams and memory belong to it. The
// core uses drivers instead (driver.hpp).
struct device_runtime : gpu::gpu_functions {
  // Returns "", or the reason why this machine has no such runtime. `library`: a path that replaces the search.
  // `site_packages`: a folder that is searched first. Both may be null.
  std::string load(isthmus_platform platform, const char* library, const char* site_packages);
};

// Makes a device current for the calling thread and restores the previous device in the destructor. A template,
// because p2p uses it with the runtime to which p2p is linked.
//
// Runtime: a type with get_device(int*) and set_device(int), which return 0 on success.
// Lifetime: the runtime must outlive this object.
template <typename Runtime>
class scoped_device {
 public:
  using code_type = decltype(std::declval<const Runtime&>().set_device(0));

  scoped_device(const Runtime& runtime, int device) : m_runtime(runtime) {
    m_code = runtime.get_device(&m_previous);
    if (m_code == code_type{} && m_previous != device) m_code = runtime.set_device(device);
    m_has_changed = m_code == code_type{} && m_previous != device;
  }
  ~scoped_device() {
    if (m_has_changed) (void)m_runtime.set_device(m_previous);
  }
  scoped_device(const scoped_device&) = delete;
  scoped_device& operator=(const scoped_device&) = delete;

  code_type code() const { return m_code; }

 private:
  const Runtime& m_runtime;
  int m_previous = -1;
  bool m_has_changed = false;
  code_type m_code{};
};

}  // namespace isthmus
