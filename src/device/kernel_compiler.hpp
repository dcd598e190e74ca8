// Kernels that are compiled while the program runs, so that the core needs no device compiler: by NVRTC for
// CUDA and HIPRTC for HIP, which are found at run time.
#pragma once

#include <isthmus/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/driver.hpp"

namespace isthmus {

struct kernel_source {
  const char* name;         // of the file, for messages
  const char* text;         // CUDA C++ that HIP understands, too; includes the header and nothing else
  const char* header_name;  // as the text includes it
  const char* header_text;
  std::vector<std::string> definitions;   // NAME=VALUE
  const char* entry;                      // the kernel: extern "C"
  std::vector<std::string> options = {};  // more of the compiler's own
};

class kernel_compiler {
 public:
  // The process's compiler for a platform with that driver, loaded at the first call that succeeds and kept;
  // nullptr and `reason` where there is none. `option`: the configured path of its library, or null. Any
  // thread.
  static kernel_compiler* get(isthmus_platform platform, device_driver& driver, const char* option,
                              std::string& reason);

  virtual ~kernel_compiler() = default;

  // The kernel for a device, compiled and loaded at the first call, which takes some tenths of a second and the
  // care that device_driver::load_kernel asks for. Throws isthmus::error, with what the compiler says. Any
  // thread.
  native_kernel kernel(device_driver& driver, int device, const kernel_source& source);

 private:
  // Machine code for the device.
  virtual std::string compile(device_driver& driver, int device, const kernel_source& source) = 0;

  struct kernel_slot {
    std::mutex mutex;
    native_kernel kernel = nullptr;
  };
  std::mutex m_mutex;  // over the map; each slot has its own, so that devices don't wait for each other
  std::map<std::pair<int, std::string>, std::unique_ptr<kernel_slot>> m_kernels;  // by device and source
};

}  // namespace isthmus
