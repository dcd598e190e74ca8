#include "backends/copy_engine/reduction.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>

#include "base/tables.hpp"

namespace isthmus::copy_engine {
namespace {

constexpr unsigned pack_bytes = 16;  // read by a thread from each rank at a time

}  // namespace

native_kernel reduction_kernels::prepare(isthmus_datatype datatype, isthmus_reduction_op op) {
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

void reduction_kernels::launch(command_batch& batch, native_kernel kernel, reduction_arguments arguments,
                               isthmus_datatype datatype) const {
  constexpr std::uint64_t per_block = std::uint64_t{block_threads} * pack_bytes;
  const std::uint64_t blocks = (arguments.count * bytes_of(datatype) + per_block - 1) / per_block;
  batch.launch(kernel, static_cast<unsigned>(std::min(blocks, m_blocks)), block_threads, &arguments);
}

}  // namespace isthmus::copy_engine
