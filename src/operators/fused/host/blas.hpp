// A BLAS library for host memory, loaded at run time through the standard C interface: OpenBLAS (PyPI wheel,
// Debian package) or oneMKL.
#pragma once

#include <cstdint>
#include <string>

#include "base/dynamic_library.hpp"

namespace isthmus::fused {

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
  bool has_thread_control() const { return m_set_threads != nullptr; }

 private:
  using sgemm_function = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                  const float* a, int lda, const float* b, int ldb, float beta, float* c,
                                  int ldc);
  std::string load(const char* option);

  sgemm_function m_sgemm = nullptr;
  void (*m_set_threads)(int) = nullptr;
  std::string m_path;
};

}  // namespace isthmus::fused
