// The kernels that combine the ranks' contributions. Each kernel is compiled for one datatype and operation
// when a call first needs it.
#pragma once

#include <isthmus/types.h>

#include <array>

#include "backends/copy_engine/command_batch.hpp"
#include "backends/copy_engine/reduction_arguments.hpp"
#include "device/kernel_compiler.hpp"

namespace isthmus::copy_engine {

// Contents of the source files.
extern const char* const reduction_kernel_text;
extern const char* const reduction_arguments_text;

class reduction_kernels {
 public:
  // `blocks`: maximum number of thread blocks per launch.
  reduction_kernels(device_driver& driver, int device, int blocks)
      : m_driver(driver), m_device(device), m_blocks(static_cast<std::uint64_t>(blocks)) {}

  // Must be called before the first prepare.
  void set_compiler(kernel_compiler& compiler) { m_compiler = &compiler; }

  // Compiles and loads the kernel if necessary, and returns it.
  // Blocking: may wait for work that is queued on the device.
  // Errors: throws isthmus::error.
  native_kernel prepare(isthmus_datatype datatype, isthmus_reduction_op op);

  // Launches the kernel after all commands added to the batch.
  void launch(command_batch& batch, native_kernel kernel, reduction_arguments arguments,
              isthmus_datatype datatype) const;

 private:
  device_driver& m_driver;
  int m_device;
  std::uint64_t m_blocks;
  kernel_compiler* m_compiler = nullptr;
  std::array<std::array<native_kernel, ISTHMUS_REDUCTION_OP_COUNT>, ISTHMUS_DATATYPE_COUNT> m_kernels{};
};

}  // namespace isthmus::copy_engine
