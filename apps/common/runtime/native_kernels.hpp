// The kernels of launcher.hpp on CUDA devices, for which DPC++'s runtime compiler generates no code.
// NVRTC compiles the same text, and native commands of the queue launch it, so that SYCL orders them
// like other commands.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/kernel.hpp"
#include "common/memory_block.hpp"

namespace apps {

// The parameters of a kernel, in the form that all kernels take.
struct kernel_parameters {
  unsigned long words[24] = {};
};

// The source of a kernel: the name of its function object and its array element types.
struct kernel_source {
  std::string name;
  std::vector<std::string> elements;
};

// The symbol of the kernel.
std::string symbol_of(std::string_view name);

class native_kernels {
 public:
  // Returns true if this class supports the queue's device.
  static bool is_supported(const sycl::queue& queue);

  // Throws std::runtime_error with the compiler's log, or if there is no compiler.
  native_kernels(const sycl::queue& queue, const char* device_text, const std::vector<kernel_source>& sources);

  // As launcher::submit. If a launch fails, the next call throws.
  sycl::event submit(sycl::queue& queue, std::string_view name, const grid& grid,
                     const kernel_parameters& parameters, const events& wait_events,
                     std::initializer_list<const memory_block*> blocks) const;

 private:
  struct failure;
  int m_device = 0;
  std::map<std::string, void*, std::less<>> m_kernels;  // CUfunctions
  std::shared_ptr<failure> m_failed;
};

}  // namespace apps
