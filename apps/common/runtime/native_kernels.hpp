// The kernels of launcher.hpp on CUDA devices, for which DPC++'s runtime compiler makes no code: NVRTC compiles
// the same text, and native commands of the queue launch it, so that SYCL orders them as any other command.
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

// Parameters as they reach any kernel.
struct kernel_parameters {
  unsigned long words[24] = {};
};

// What is compiled for one function object.
struct kernel_source {
  std::string name;
  std::vector<std::string> elements;
};

// The name of its kernel.
std::string symbol_of(std::string_view name);

class native_kernels {
 public:
  // Whether the queue's device is one for this class.
  static bool is_supported(const sycl::queue& queue);

  // Throws std::runtime_error with the compiler's log, or where there is no compiler.
  native_kernels(const sycl::queue& queue, const char* device_text, const std::vector<kernel_source>& sources);

  // As launcher::submit. A launch that failed is thrown by the next one.
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
