#include "matrices.hpp"

#include <cmath>
#include <cstring>

#include "oracle/inputs.hpp"
#include "oracle/number.hpp"

namespace fused_test {
namespace {

std::uint64_t bytes_of(isthmus_datatype type) { return oracle::bytes_of(type); }

// The nearest element of `type` below 1 in magnitude, from random bits: exponents from 2^-6 up, both signs.
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

double matrix::at(const std::byte* of, std::uint64_t row, std::uint64_t col) const {
  return static_cast<double>(oracle::decode(m_type, of + index(row, col) * bytes_of(m_type)));
}

std::string matrix::gaps_error(const std::byte* of) const {
  const std::uint64_t lines = m_layout == ISTHMUS_ROW_MAJOR ? m_rows : m_cols;
  const std::uint64_t width = m_layout == ISTHMUS_ROW_MAJOR ? m_cols : m_rows;
  for (std::uint64_t line = 0; line < lines; ++line)
    for (std::uint64_t i = (line * m_leading + width) * bytes_of(m_type);
         i < (line + 1) * m_leading * bytes_of(m_type); ++i)
      if (of[i] != std::byte{0xff}) return "byte " + std::to_string(i) + " of a gap was written";
  return "";
}

std::string product_error(const product& what, const std::byte* c_data, std::uint64_t first) {
  const std::uint64_t k = what.a.cols();
  const matrix bias_row(what.output, 1, what.c.cols(), ISTHMUS_ROW_MAJOR, 0);
  const double out_roundoff = static_cast<double>(oracle::unit_roundoff(oracle::format_of(what.output)));
  const double tolerance = (static_cast<double>(k) + 8) * 0x1p-24;
  for (std::uint64_t row = 0; row < what.a.rows(); ++row)
    for (std::uint64_t col = 0; col < what.c.cols(); ++col) {
      double sum = 0, magnitude = 0;
      for (std::uint64_t i = 0; i < k; ++i) {
        const double term = what.a.at(what.a_data, row, i) * what.b.at(what.b_data, i, col);
        sum += term;
        magnitude += std::fabs(term);
      }
      const double before = what.beta != 0 ? what.beta * what.c.at(what.c_before, row + first, col) : 0;
      const double bias = what.bias != nullptr ? bias_row.at(what.bias, 0, col) : 0;
      const double expected = what.alpha * sum + before + bias;
      const double apart = what.bias_apart ? std::fabs(what.alpha * sum) + std::fabs(before) : 0;
      const double bound =
          tolerance * (std::fabs(what.alpha) * magnitude + std::fabs(before) + std::fabs(bias)) +
          1.01 * out_roundoff *
              (std::fabs(expected) + apart + what.partial_sums * std::fabs(what.alpha) * magnitude) +
          1e-30;
      const double found = what.c.at(c_data, row + first, col);
      if (!(std::fabs(found - expected) <= bound))
        return "C(" + std::to_string(row + first) + ", " + std::to_string(col) +
               ") = " + std::to_string(found) + ", expected " + std::to_string(expected) + " +- " +
               std::to_string(bound);
    }
  return "";
}

}  // namespace fused_test
