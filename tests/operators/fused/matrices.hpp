// Random matrices that any rank can compute for any other, and the check of a product in float64. Shares no
// code with src/: elements are decoded and rounded by the oracle's own arithmetic.
#pragma once

#include <isthmus/fused.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fused_test {

// rows x cols elements of `type` in memory, `leading` elements between lines; gaps and everything that is not
// filled hold all-ones bytes (NaN).
class matrix {
 public:
  matrix(isthmus_datatype type, std::uint64_t rows, std::uint64_t cols, isthmus_matrix_layout layout,
         std::uint64_t leading);

  std::uint64_t bytes() const;
  // Element (row, col) becomes a random number in (-1, 1) that depends on seed, row + first_row and
  // col + first_col.
  void fill(std::uint64_t seed, std::uint64_t first_row, std::byte* to, std::uint64_t first_col = 0) const;
  void poison(std::byte* to) const;
  double at(const std::byte* of, std::uint64_t row, std::uint64_t col) const;
  // "" or the first byte outside of the elements that is not poison any more.
  std::string gaps_error(const std::byte* of) const;

  std::uint64_t rows() const { return m_rows; }
  std::uint64_t cols() const { return m_cols; }

 private:
  std::uint64_t index(std::uint64_t row, std::uint64_t col) const;

  isthmus_datatype m_type;
  std::uint64_t m_rows, m_cols;
  isthmus_matrix_layout m_layout;
  std::uint64_t m_leading;
};

// One product: C = alpha * A * B + beta * C0 + bias, from what the matrices hold.
struct product {
  const matrix &a, &b, &c;
  const std::byte *a_data, *b_data, *c_before, *bias;  // bias may be null: `bias_type` is C's
  double alpha, beta;
  isthmus_datatype output;
  int partial_sums = 0;     // of the product's terms, that were rounded to C's type on the way
  bool bias_apart = false;  // the sum may have been rounded before the bias was added
};

// "" or the first element of C (rows [first, first + a.rows())) that is further from the float64 product than
// k + 8 roundings of float32, one of C's type and those of partial sums allow.
std::string product_error(const product& what, const std::byte* c_data, std::uint64_t first);

}  // namespace fused_test
