#include "operators/fused/host/product.hpp"

#include <algorithm>

#include "operators/fused/host/convert.hpp"

namespace isthmus::fused {
namespace {

// A panel of A stays in the L2 cache between its conversion and its product, but is tall enough for BLAS to
// reuse the packed part of B.
constexpr std::uint64_t panel_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t min_rows = 64, max_rows = 1024;

std::uint64_t panel_rows(std::uint64_t k) {
  const std::uint64_t row_bytes = std::max<std::uint64_t>(k, 1) * sizeof(float);
  return std::clamp<std::uint64_t>(panel_bytes / row_bytes / 16 * 16, min_rows, max_rows);
}

}  // namespace

host_product::host_product(const fused_problem& problem, const blas& library)
    : m_problem(problem), m_blas(library), m_panel_rows(panel_rows(problem.description.k)) {
  const auto& description = problem.description;
  if (description.input != ISTHMUS_FLOAT32) {
    m_b_panel.resize(description.k * description.n);
    m_a_panel.resize(std::min(m_panel_rows, description.m) * description.k);
  }
  m_row.resize(description.n);
  if (description.output != ISTHMUS_FLOAT32)
    m_c_panel.resize(std::min(m_panel_rows, description.m) * description.n);
}

std::uint64_t host_product::workspace_bytes() const {
  return (m_b_panel.size() + m_a_panel.size() + m_c_panel.size() + m_row.size()) * sizeof(float);
}

void host_product::set_b(const void* b) {
  const auto& description = m_problem.description;
  if (description.input == ISTHMUS_FLOAT32) {
    m_b = static_cast<const float*>(b);
    m_ldb = description.ldb;
    return;
  }
  const bool is_row_major = description.b_layout == ISTHMUS_ROW_MAJOR;
  const std::uint64_t lines = is_row_major ? description.k : description.n,
                      width = is_row_major ? description.n : description.k;
  for (std::uint64_t line = 0; line < lines; ++line)
    widen(description.input,
          static_cast<const std::byte*>(b) + line * description.ldb * m_problem.input_bytes(),
          m_b_panel.data() + line * width, width);
  m_b = m_b_panel.data();
  m_ldb = width;
}

void host_product::run(const void* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                       const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const auto* from = static_cast<const std::byte*>(a);
  const bool is_float32 = description.input == ISTHMUS_FLOAT32 && description.output == ISTHMUS_FLOAT32;
  const std::uint64_t step = is_float32 ? std::max<std::uint64_t>(rows, 1) : m_panel_rows;
  for (std::uint64_t begin = 0; begin < rows; begin += step) {
    const std::uint64_t count = std::min(step, rows - begin);
    const std::byte* source = from + begin * lda * m_problem.input_bytes();
    const target panel{static_cast<std::byte*>(to.c) + begin * to.ldc * m_problem.output_bytes(), to.ldc};
    if (description.input == ISTHMUS_FLOAT32) {
      run_panel(reinterpret_cast<const float*>(source), lda, count, panel, scalars);
      continue;
    }
    for (std::uint64_t row = 0; row < count; ++row)
      widen(description.input, source + row * lda * m_problem.input_bytes(),
            m_a_panel.data() + row * description.k, description.k);
    run_panel(m_a_panel.data(), description.k, count, panel, scalars);
  }
}

void host_product::run_panel(const float* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                             const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const bool is_transposed = description.b_layout == ISTHMUS_COLUMN_MAJOR;
  const bool is_direct = description.output == ISTHMUS_FLOAT32;
  m_blas.sgemm(rows, description.n, description.k, scalars.alpha, a, lda, is_transposed, m_b, m_ldb,
               is_direct ? scalars.beta : 0.0f, is_direct ? static_cast<float*>(to.c) : m_c_panel.data(),
               is_direct ? to.ldc : description.n);
  if (!is_direct || scalars.bias != nullptr) finish_rows(to, rows, scalars);
}

// BLAS supports neither a bias nor 16-bit C. Adds both in float32 and rounds once.
void host_product::finish_rows(const target& to, std::uint64_t rows, const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const bool is_direct = description.output == ISTHMUS_FLOAT32;
  std::vector<float> bias(scalars.bias != nullptr ? description.n : 0);
  if (scalars.bias != nullptr) widen(description.output, scalars.bias, bias.data(), description.n);
  for (std::uint64_t row = 0; row < rows; ++row) {
    auto* c_row = static_cast<std::byte*>(to.c) + row * to.ldc * m_problem.output_bytes();
    float* line = is_direct ? reinterpret_cast<float*>(c_row) : m_c_panel.data() + row * description.n;
    if (!is_direct && scalars.beta != 0) {
      widen(description.output, c_row, m_row.data(), description.n);
      for (std::uint64_t i = 0; i < description.n; ++i) line[i] += scalars.beta * m_row[i];
    }
    for (std::uint64_t i = 0; i < bias.size(); ++i) line[i] += bias[i];
    if (!is_direct) narrow(description.output, line, c_row, description.n);
  }
}

}  // namespace isthmus::fused
