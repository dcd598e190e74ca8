// Random matrices that every rank can compute for any other rank, and a check of products in float64. Shares no
// code with src/: elements are decoded and rounded by the oracle.
#pragma once

#include <isthmus/fused.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fused_test {

// A matrix of rows x cols elements of `type`, with `leading` elements between lines. Gaps and elements that are
// not filled hold all-ones bytes (NaN).
class matrix {
 public:
  matrix(isthmus_datatype type, std::uint64_t rows, std::uint64_t cols, isthmus_matrix_layout layout,
         std::uint64_t leading);

  std::uint64_t bytes() const;
  // Sets element (row, col) to a random number in (-1, 1) that depends on seed, row + first_row and
  // col + first_col.
  void fill(std::uint64_t seed, std::uint64_t first_row, std::byte* to, std::uint64_t first_col = 0) const;
  void poison(std::byte* to) const;
  double element(const std::byte* data, std::uint64_t row, std::uint64_t col) const;
  // Returns "", or the first byte outside of the elements that has been overwritten.
  std::string gaps_error(const std::byte* data) const;

  std::uint64_t rows() const { return m_rows; }
  std::uint64_t cols() const { return m_cols; }

 private:
  std::uint64_t index(std::uint64_t row, std::uint64_t col) const;

  isthmus_datatype m_type;
  std::uint64_t m_rows, m_cols;
  isthmus_matrix_layout m_layout;
  std::uint64_t m_leading;
};

// A product C = alpha * A * B + beta * C0 + bias of given matrices.
struct product {
  const matrix &a, &b, &c;
  const std::byte *a_data, *b_data, *initial_c, *bias;  // bias may be null and has the type of C
  double alpha, beta;
  isthmus_datatype output;
  int partial_sums = 0;           // number of partial sums that are rounded to C's type
  bool is_bias_separate = false;  // the sum may have been rounded before the bias was added
};

// Returns "", or the first element of C (rows [first, first + a.rows())) whose error against the float64
// product exceeds k + 8 roundings of float32, one rounding to C's type and the roundings of partial sums.
std::string product_error(const product& problem, const std::byte* c_data, std::uint64_t first);

}  // namespace fused_test
