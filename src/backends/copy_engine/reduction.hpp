// The kernel that combines what the ranks sent: made at the first call that needs it, for its datatype and
// operation, and launched.
#pragma once

#include <isthmus/types.h>

#include <array>

#include "backends/copy_engine/command_batch.hpp"
#include "backends/copy_engine/reduction_arguments.hpp"
#include "device/kernel_compiler.hpp"

namespace isthmus::copy_engine {

// The files, as text.
extern const char* const reduction_kernel_text;
extern const char* const reduction_arguments_text;

class reduction_kernels {
 public:
  // `blocks`: at most so many of a launch.
  reduction_kernels(device_driver& driver, int device, int blocks)
      : m_driver(driver), m_device(device), m_blocks(static_cast<std::uint64_t>(blocks)) {}

  // Who compiles. Before the first prepare.
  void set_compiler(kernel_compiler& compiler) { m_compiler = &compiler; }

  // Makes the kernel ready; throws isthmus::error. May wait for what is queued on the device.
  native_kernel prepare(isthmus_datatype datatype, isthmus_reduction_op op);

  // Behind everything that the batch has been given.
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
