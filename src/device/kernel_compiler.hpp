// Compiles kernels at run time, so that the core needs no device compiler. Uses NVRTC for CUDA and HIPRTC for
// HIP, which are loaded at run time.
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
  const char* text;         // CUDA C++ that HIP also accepts; includes only the header
  const char* header_name;  // as in the #include
  const char* header_text;
  std::vector<std::string> definitions;   // NAME=VALUE
  const char* entry;                      // name of the kernel, which is extern "C"
  std::vector<std::string> options = {};  // additional compiler options
};

class kernel_compiler {
 public:
  // Returns the process's compiler for a platform and driver, which is loaded at the first successful call and
  // never unloaded. If there is none, returns nullptr and sets `reason`. `option`: the configured path of the
  // library, or null.
  // Thread safety: any thread may call this.
  static kernel_compiler* get(isthmus_platform platform, device_driver& driver, const char* option,
                              std::string& reason);

  virtual ~kernel_compiler() = default;

  // Returns the kernel for a device. The first call compiles and loads it, which takes a few tenths
  // of a second.
  // Blocking: as device_driver::load_kernel.
  // Errors: throws isthmus::error with the compiler's log.
  // Thread safety: any thread may call this.
  native_kernel kernel(device_driver& driver, int device, const kernel_source& source);

 private:
  // Returns machine code or PTX for the device.
  virtual std::string compile(device_driver& driver, int device, const kernel_source& source) = 0;

  struct kernel_slot {
    std::mutex mutex;
    native_kernel kernel = nullptr;
  };
  std::mutex m_mutex;  // guards the map; each slot has its own mutex, so that devices do not block each other
  std::map<std::pair<int, std::string>, std::unique_ptr<kernel_slot>> m_kernels;  // by device and source
};

}  // namespace isthmus
