#include "matrices.hpp"

#include <cmath>
#include <cstring>

#include "oracle/inputs.hpp"
#include "oracle/number.hpp"

namespace fused_test {
namespace {

std::uint64_t bytes_of(isthmus_datatype type) { return oracle::bytes_of(type); }

// Stores a random element of `type` with a magnitude in [2^-6, 1) and a random sign.
void store_random(isthmus_datatype type, std::uint64_t bits, std::byte* to) {
  const auto& format = oracle::format_of(type);
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  const std::uint64_t exponent = static_cast<std::uint64_t>(format.bias) - 1 - (bits >> 56) % 6;
  const std::uint64_t sign = bits >> 55 & 1;
  const int width = format.exponent_bits + format.mantissa_bits;
  oracle::store_bits(type, sign << width | exponent << format.mantissa_bits | mantissa, to);
}

}  // namespace

matrix::matrix(isthmus_datatype type, std::uint64_t rows, std::uint64_t cols, isthmus_matrix_layout layout,
               std::uint64_t leading)
    : m_type(type), m_rows(rows), m_cols(cols), m_layout(layout), m_leading(leading) {
  if (m_leading == 0) m_leading = layout == ISTHMUS_ROW_MAJOR ? cols : rows;
}

std::uint64_t matrix::index(std::uint64_t row, std::uint64_t col) const {
  return m_layout == ISTHMUS_ROW_MAJOR ? row * m_leading + col : col * m_leading + row;
}

std::uint64_t matrix::bytes() const {
  return (m_layout == ISTHMUS_ROW_MAJOR ? m_rows : m_cols) * m_leading * bytes_of(m_type);
}

void matrix::poison(std::byte* to) const {
  if (bytes() > 0) std::memset(to, 0xff, bytes());
}

void matrix::fill(std::uint64_t seed, std::uint64_t first_row, std::byte* to, std::uint64_t first_col) const {
  poison(to);
  for (std::uint64_t row = 0; row < m_rows; ++row)
    for (std::uint64_t col = 0; col < m_cols; ++col)
      store_random(m_type, oracle::mix(seed, row + first_row, col + first_col),
                   to + index(row, col) * bytes_of(m_type));
}

double matrix::element(const std::byte* data, std::uint64_t row, std::uint64_t col) const {
  return static_cast<double>(oracle::decode(m_type, data + index(row, col) * bytes_of(m_type)));
}

std::string matrix::gaps_error(const std::byte* data) const {
  const std::uint64_t lines = m_layout == ISTHMUS_ROW_MAJOR ? m_rows : m_cols;
  const std::uint64_t width = m_layout == ISTHMUS_ROW_MAJOR ? m_cols : m_rows;
  for (std::uint64_t line = 0; line < lines; ++line)
    for (std::uint64_t i = (line * m_leading + width) * bytes_of(m_type);
         i < (line + 1) * m_leading * bytes_of(m_type); ++i)
      if (data[i] != std::byte{0xff}) return "byte " + std::to_string(i) + " of a gap was written";
  return "";
}

std::string product_error(const product& problem, const std::byte* c_data, std::uint64_t first) {
  const std::uint64_t rows = problem.a.rows(), cols = problem.c.cols(), k = problem.a.cols();
  std::vector<double> a(rows * k), b(cols * k);
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t i = 0; i < k; ++i) a[row * k + i] = problem.a.element(problem.a_data, row, i);
  for (std::uint64_t col = 0; col < cols; ++col)
    for (std::uint64_t i = 0; i < k; ++i) b[col * k + i] = problem.b.element(problem.b_data, i, col);
  const matrix bias_row(problem.output, 1, problem.c.cols(), ISTHMUS_ROW_MAJOR, 0);
  const double out_roundoff = static_cast<double>(oracle::unit_roundoff(oracle::format_of(problem.output)));
  const double tolerance = (static_cast<double>(k) + 8) * 0x1p-24;
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t col = 0; col < cols; ++col) {
      double sum = 0, magnitude = 0;
      for (std::uint64_t i = 0; i < k; ++i) {
        const double term = a[row * k + i] * b[col * k + i];
        sum += term;
        magnitude += std::fabs(term);
      }
      const double scaled_c =
          problem.beta != 0 ? problem.beta * problem.c.element(problem.initial_c, row + first, col) : 0;
      const double bias = problem.bias != nullptr ? bias_row.element(problem.bias, 0, col) : 0;
      const double expected = problem.alpha * sum + scaled_c + bias;
      const double bias_roundoff =
          problem.is_bias_separate ? std::fabs(problem.alpha * sum) + std::fabs(scaled_c) : 0;
      const double bound =
          tolerance * (std::fabs(problem.alpha) * magnitude + std::fabs(scaled_c) + std::fabs(bias)) +
          1.01 * out_roundoff *
              (std::fabs(expected) + bias_roundoff +
               problem.partial_sums * std::fabs(problem.alpha) * magnitude) +
          1e-30;
      const double actual = problem.c.element(c_data, row + first, col);
      if (!(std::fabs(actual - expected) <= bound))
        return "C(" + std::to_string(row + first) + ", " + std::to_string(col) +
               ") = " + std::to_string(actual) + ", expected " + std::to_string(expected) + " +- " +
               std::to_string(bound);
    }
  return "";
}

}  // namespace fused_test
