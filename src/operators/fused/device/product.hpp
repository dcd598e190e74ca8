// C = alpha * A * B + beta * C + bias over rows of device memory, by cuBLASLt or hipBLASLt. What their
// heuristics answer for a shape is kept.
#pragma single_us

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
  struct product_scalars {
    float alpha, beta;
    const void* bias;  // may be null
  };

  // Throws error (UNSUPPORTED, BACKEND, OUT_OF_MEMORY). `driver` and `library` live as long as the process.
  device_product(const fused_problem& problem, device_driver& driver, int device, const blaslt& library);
  ~device_product();
  device_product(const device_product&) = delete;
  device_product& operator=(const device_product&) = delete;

  // Enqueues rows of A, `lda` elements apart, times the whole B to rows of C.
  void enqueue(const void* a, std::uint64_t lda, std::uint64_t rows, const void* b, void* c,
               const product_scalars& scalars, native_stream stream);

  std::uint64_t workspace_bytes() const { return m_workspace.bytes() + m_zeros.bytes(); }
  // The library's path and version.
  std::string library_text() const;

 private:
  struct operation;  // descriptors and the algorithm of one shape
  // rows, lda, bias?, and the alignment of every pointer
  using key = std::tuple<std::uint64_t, std::uint64_t, bool, unsigned, unsigned, unsigned>;

  operation& find(const key& operation_key);
  std::unique_ptr<operation> prepare(const key& operation_key);
  void choose_algorithm(operation& prepared, const key& operation_key);
  void check(int status, const char* location, const char* call) const;

  const fused_problem& m_problem;
  device_driver& m_driver;
  int m_device;
  const blaslt& m_library;
  void* m_handle = nullptr;  // made last in the constructor
  std::uint64_t m_inner;     // k, or 1 where k == 0: zeros are multiplied then
  std::uint64_t m_ldb;
  owned_memory m_workspace, m_zeros;
  std::map<key, std::unique_ptr<operation>> m_operations;
};

}  // namespace isthmus::fused
