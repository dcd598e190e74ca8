#include "operators/fused/host/product.hpp"

#include <algorithm>

#include "operators/fused/host/convert.hpp"

namespace isthmus::fused {
namespace {

// A panel of A stays in the second-level cache between its conversion and its product, but is tall enough
// for BLAS to reuse what it packs of B.
constexpr std::uint64_t panel_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t least_rows = 64, most_rows = 1024;

std::uint64_t panel_rows(std::uint64_t k) {
  const std::uint64_t row_bytes = std::max<std::uint64_t>(k, 1) * sizeof(float);
  return std::clamp<std::uint64_t>(panel_bytes / row_bytes / 16 * 16, least_rows, most_rows);
}

}  // namespace

host_product::host_product(const problem& what, const blas& library)
    : m_what(what), m_blas(library), m_panel_rows(panel_rows(what.asked.k)) {
  const auto& asked = what.asked;
  if (asked.input != ISTHMUS_FLOAT32) {
    m_b_panel.resize(asked.k * asked.n);
    m_a_panel.resize(std::min(m_panel_rows, asked.m) * asked.k);
  }
  m_row.resize(asked.n);
  if (asked.output != ISTHMUS_FLOAT32) m_c_panel.resize(std::min(m_panel_rows, asked.m) * asked.n);
}

std::uint64_t host_product::workspace_bytes() const {
  return (m_b_panel.size() + m_a_panel.size() + m_c_panel.size() + m_row.size()) * sizeof(float);
}

void host_product::set_b(const void* b) {
  const auto& asked = m_what.asked;
  if (asked.input == ISTHMUS_FLOAT32) {
    m_b = static_cast<const float*>(b);
    m_ldb = asked.ldb;
    return;
  }
  const bool row_major = asked.b_layout == ISTHMUS_ROW_MAJOR;
  const std::uint64_t lines = row_major ? asked.k : asked.n, width = row_major ? asked.n : asked.k;
  for (std::uint64_t line = 0; line < lines; ++line)
    widen(asked.input, static_cast<const std::byte*>(b) + line * asked.ldb * m_what.input_bytes(),
          m_b_panel.data() + line * width, width);
  m_b = m_b_panel.data();
  m_ldb = width;
}

void host_product::run(const void* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                       const scalars& with) {
  const auto& asked = m_what.asked;
  const auto* from = static_cast<const std::byte*>(a);
  const bool whole = asked.input == ISTHMUS_FLOAT32 && asked.output == ISTHMUS_FLOAT32;
  const std::uint64_t step = whole ? std::max<std::uint64_t>(rows, 1) : m_panel_rows;
  for (std::uint64_t begin = 0; begin < rows; begin += step) {
    const std::uint64_t count = std::min(step, rows - begin);
    const std::byte* source = from + begin * lda * m_what.input_bytes();
    const target panel{static_cast<std::byte*>(to.c) + begin * to.ldc * m_what.output_bytes(), to.ldc};
    if (asked.input == ISTHMUS_FLOAT32) {
      run_panel(reinterpret_cast<const float*>(source), lda, count, panel, with);
      continue;
    }
    for (std::uint64_t row = 0; row < count; ++row)
      widen(asked.input, source + row * lda * m_what.input_bytes(), m_a_panel.data() + row * asked.k, asked.k);
    run_panel(m_a_panel.data(), asked.k, count, panel, with);
  }
}

void host_product::run_panel(const float* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                             const scalars& with) {
  const auto& asked = m_what.asked;
  const bool transposed = asked.b_layout == ISTHMUS_COLUMN_MAJOR;
  const bool direct = asked.output == ISTHMUS_FLOAT32;
  m_blas.sgemm(rows, asked.n, asked.k, with.alpha, a, lda, transposed, m_b, m_ldb, direct ? with.beta : 0.0f,
               direct ? static_cast<float*>(to.c) : m_c_panel.data(), direct ? to.ldc : asked.n);
  if (!direct || with.bias != nullptr) finish_rows(to, rows, with);
}

// Adds what BLAS doesn't know, in float32, and rounds once.
void host_product::finish_rows(const target& to, std::uint64_t rows, const scalars& with) {
  const auto& asked = m_what.asked;
  const bool direct = asked.output == ISTHMUS_FLOAT32;
  std::vector<float> bias(with.bias != nullptr ? asked.n : 0);
  if (with.bias != nullptr) widen(asked.output, with.bias, bias.data(), asked.n);
  for (std::uint64_t row = 0; row < rows; ++row) {
    auto* given = static_cast<std::byte*>(to.c) + row * to.ldc * m_what.output_bytes();
    float* line = direct ? reinterpret_cast<float*>(given) : m_c_panel.data() + row * asked.n;
    if (!direct && with.beta != 0) {
      widen(asked.output, given, m_row.data(), asked.n);
      for (std::uint64_t i = 0; i < asked.n; ++i) line[i] += with.beta * m_row[i];
    }
    for (std::uint64_t i = 0; i < bias.size(); ++i) line[i] += bias[i];
    if (!direct) narrow(asked.output, line, given, asked.n);
  }
}

}  // namespace isthmus::fused
