// The kernels that combine the ranks' contributions. Each kernel is compiled for one datatype and operation
// when a call first needs it.
#pragma once

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>

#include "backends/copy_engine/command_batch.hpp"
#include "backends/copy_engine/reduction_arguments.hpp"
#include "base/tables.hpp"
#include "device/kernel_compiler.hpp"

namespace isthmus::copy_engine {

// Contents of the source files.
extern const char* const reduction_kernel_text;
extern const char* const reduction_arguments_text;

inline constexpr unsigned pack_bytes = 16;  // read by a thread from each rank at a time

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

inline native_kernel reduction_kernels::prepare(isthmus_datatype datatype, isthmus_reduction_op op) {
  native_kernel& kernel = m_kernels[static_cast<std::size_t>(datatype)][static_cast<std::size_t>(op)];
  if (kernel != nullptr) return kernel;
  const kernel_source source{"reduction_kernel.cu",
                             reduction_kernel_text,
                             "backends/copy_engine/reduction_arguments.hpp",
                             reduction_arguments_text,
                             {fmt::format("ISTHMUS_ELEMENT={}", isthmus_datatype_name(datatype)),
                              fmt::format("ISTHMUS_OPERATION={}", isthmus_reduction_op_name(op))},
                             "isthmus_combine"};
  return kernel = m_compiler->kernel(m_driver, m_device, source);
}

inline void reduction_kernels::launch(command_batch& batch, native_kernel kernel, reduction_arguments arguments,
                                      isthmus_datatype datatype) const {
  constexpr std::uint64_t per_block = std::uint64_t{block_threads} * pack_bytes;
  const std::uint64_t blocks = (arguments.count * bytes_of(datatype) + per_block - 1) / per_block;
  batch.launch(kernel, static_cast<unsigned>(std::min(blocks, m_blocks)), block_threads, &arguments);
}

}  // namespace isthmus::copy_engine
