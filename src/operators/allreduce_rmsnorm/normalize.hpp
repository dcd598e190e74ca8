// Residual addition and RMSNorm on the host, with the bits of the device kernels (backends/p2p/allreduce_rmsnorm.cu).
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <vector>

namespace isthmus {

class row_normalizer {
 public:
  // Lifetime: the operation outlives the object. Its recv_buf receives the residual.
  explicit row_normalizer(const isthmus_operation& operation);
  // `sum`: the allreduced row, in the datatype of the operation.
  void normalize(std::uint64_t row, const void* sum);

 private:
  float sum_of_squares();
  void quantize(std::uint64_t row);

  const isthmus_operation& m_operation;
  const isthmus_rmsnorm& m_norm;
  std::vector<float> m_values, m_operand, m_weight;
  std::vector<std::byte> m_rounded;
};

}  // namespace isthmus
