// Product C = alpha * A * B + beta * C + bias over rows of host memory. 16-bit inputs are converted to float32
// panels that stay in the cache, and each product is a standard BLAS call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "operators/fused/host/blas.hpp"
#include "operators/fused/model/problem.hpp"

namespace isthmus::fused {

class host_product {
 public:
  struct target {
    void* c;
    std::uint64_t ldc;
  };
  struct product_scalars {
    float alpha, beta;
    const void* bias;  // may be null
  };

  // Allocates the panels, which are most of a host plan's workspace.
  host_product(const fused_problem& problem, const blas& library);

  // Sets and, if necessary, converts B for the following products.
  void set_b(const void* b);
  // Multiplies `rows` rows of A, `lda` elements apart, with B.
  void run(const void* a, std::uint64_t lda, std::uint64_t rows, const target& to,
           const product_scalars& scalars);

  std::uint64_t workspace_bytes() const;

 private:
  void run_panel(const float* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                 const product_scalars& scalars);
  void finish_rows(const target& to, std::uint64_t rows, const product_scalars& scalars);

  const fused_problem& m_problem;
  const blas& m_blas;
  std::uint64_t m_panel_rows;
  const float* m_b = nullptr;
  std::uint64_t m_ldb = 0;
  std::vector<float> m_b_panel, m_a_panel, m_c_panel, m_row;
};

}  // namespace isthmus::fused
