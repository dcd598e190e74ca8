// Product D = alpha * A * B + beta * C + bias over rows of device memory, computed by cuBLASLt or hipBLASLt.
// The heuristics' results are cached per shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "device/owned.hpp"
#include "operators/fused/device/blaslt.hpp"
#include "operators/fused/model/problem.hpp"

namespace isthmus::fused {

class device_product {
 public:
  // Errors: throws error (UNSUPPORTED, BACKEND, OUT_OF_MEMORY).
  // Lifetime: `driver` and `library` must outlive the product.
  device_product(const fused_problem& problem, device_driver& driver, int device, const blaslt& library);
  ~device_product();
  device_product(const device_product&) = delete;
  device_product& operator=(const device_product&) = delete;

  // Enqueues the product of `rows` rows of A, `lda` elements apart, with all of B. C and D may be the same. Their rows are
  // `ldc` elements apart.
  void enqueue(const void* a, std::uint64_t lda, std::uint64_t rows, const void* b, const void* c, void* d,
               const product_scalars& scalars, native_stream stream);

  std::uint64_t workspace_bytes() const { return m_workspace.bytes() + m_zeros.bytes(); }
  // Path and version of the library.
  std::string library_text() const;

 private:
  struct operation;  // descriptors and the algorithm of one shape
  // rows, lda, has_bias, and the alignments of A, B, C and D
  using key = std::tuple<std::uint64_t, std::uint64_t, bool, unsigned, unsigned, unsigned, unsigned>;

  operation& find(const key& operation_key);
  std::unique_ptr<operation> prepare(const key& operation_key);
  void choose_algorithm(operation& prepared, const key& operation_key);
  void check(int status, const char* location, const char* call) const;

  const fused_problem& m_problem;
  device_driver& m_driver;
  int m_device;
  const blaslt& m_library;
  void* m_handle = nullptr;  // created last in the constructor
  std::uint64_t m_inner;     // k, or 1 if k == 0 (then zeros are multiplied)
  std::uint64_t m_ldb;
  owned_memory m_workspace, m_zeros;
  std::map<key, std::unique_ptr<operation>> m_operations;
};

}  // namespace isthmus::fused
