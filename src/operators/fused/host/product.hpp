// Matrix products on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dynamic_library.hpp"
#include "operators/fused/model/problem.hpp"

namespace isthmus::fused {

// A BLAS library for host memory, loaded at run time through the standard C interface: OpenBLAS (PyPI wheel,
// Debian package) or oneMKL.
class blas {
 public:
  // Returns the BLAS of the process. It is loaded by the first successful call and stays loaded. `option`: the
  // configured path, or null.
  // Errors: returns nullptr and sets `reason`.
  // Thread safety: any thread.
  static blas* get(const char* option, std::string& reason);

  // Row-major C[rows x n] = alpha * A[rows x k] * op(B) + beta * C, where op(B) is k x n. C is not read if beta
  // == 0.
  // Thread safety: any thread. The calling thread computes, with as many helper threads as set_threads allows.
  void sgemm(std::uint64_t rows, std::uint64_t n, std::uint64_t k, float alpha, const float* a,
             std::uint64_t lda, bool is_b_transposed, const float* b, std::uint64_t ldb, float beta, float* c,
             std::uint64_t ldc) const;

  // Sets the number of threads per product. BLAS libraries support only one global setting.
  void set_threads(int threads) const;
  const std::string& path() const { return m_path; }

 private:
  using sgemm_function = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                  const float* a, int lda, const float* b, int ldb, float beta, float* c,
                                  int ldc);
  std::string load(const char* option);

  sgemm_function m_sgemm = nullptr;
  void (*m_set_threads)(int) = nullptr;
  std::string m_path;
};

// Product C = alpha * A * B + beta * C + bias over rows of host memory. 16-bit inputs are converted to float32
// panels that stay in the cache, and each product is a standard BLAS call.
class host_product {
 public:
  struct target {
    void* c;
    std::uint64_t ldc;
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
