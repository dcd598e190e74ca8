#include "operators/allreduce_rmsnorm/normalize.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/elements.hpp"
#include "base/tables.hpp"

namespace isthmus {
namespace {

constexpr std::size_t accumulators = 1024, group = 32;
constexpr float largest_float8 = 448.0F;

// Rounds the values to the datatype and back.
void round_values(std::vector<float>& values, isthmus_datatype datatype, void* rounded) {
  narrow(values.data(), datatype, rounded, values.size());
  widen(rounded, datatype, values.data(), values.size());
}

// Adds 32 numbers: the two halves, then the halves of the result, and so on.
float add_halves(float* numbers) {
  for (std::size_t half = group / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) numbers[i] += numbers[i + half];
  return numbers[0];
}

// The larger one, or a NaN.
float larger(float a, float b) { return b > a || std::isnan(b) ? b : a; }

}  // namespace

row_normalizer::row_normalizer(const isthmus_operation& operation)
    : m_operation(operation),
      m_norm(*operation.rmsnorm),
      m_values(m_norm.hidden),
      m_operand(m_norm.hidden),
      m_weight(m_norm.hidden),
      m_rounded(m_norm.hidden * bytes_of(operation.datatype)) {
  widen(m_norm.weight, operation.datatype, m_weight.data(), m_norm.hidden);
}

// The order is part of the interface (docs/guide/fused.md).
float row_normalizer::sum_of_squares() {
  const std::size_t vector = 16 / bytes_of(m_operation.datatype);
  std::array<float, accumulators> sums{};
  for (std::size_t begin = 0; begin < m_values.size(); begin += vector) {
    float sum = 0;
    for (std::size_t i = begin; i < std::min(begin + vector, m_values.size()); ++i)
      sum += m_values[i] * m_values[i];
    sums[begin / vector % accumulators] += sum;
  }
  std::array<float, accumulators / group> groups{};
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = add_halves(&sums[i * group]);
  return add_halves(groups.data());
}

void row_normalizer::normalize(std::uint64_t row, const void* sum) {
  const std::uint64_t hidden = m_norm.hidden, bytes = hidden * bytes_of(m_operation.datatype);
  widen(sum, m_operation.datatype, m_values.data(), hidden);
  widen(static_cast<const std::byte*>(m_norm.residual) + row * bytes, m_operation.datatype, m_operand.data(),
        hidden);
  for (std::size_t i = 0; i < hidden; ++i) m_values[i] += m_operand[i];
  round_values(m_values, m_operation.datatype, static_cast<std::byte*>(m_operation.recv_buf) + row * bytes);
  const float factor = 1.0F / std::sqrt(sum_of_squares() / static_cast<float>(hidden) + m_norm.eps);
  for (float& value : m_values) value *= factor;
  if (m_norm.round_before_weight != 0) round_values(m_values, m_operation.datatype, m_rounded.data());
  for (std::size_t i = 0; i < hidden; ++i) m_values[i] *= m_weight[i];
  const bool is_quantized = m_norm.output != m_operation.datatype;
  round_values(m_values, m_operation.datatype,
               is_quantized ? m_rounded.data() : static_cast<std::byte*>(m_norm.normalized) + row * bytes);
  if (is_quantized) quantize(row);
}

void row_normalizer::quantize(std::uint64_t row) {
  float scale = 0;
  if (m_norm.scales == nullptr) {
    scale = *m_norm.scale;
  } else {
    float largest = 0;
    for (const float value : m_values) largest = larger(largest, std::fabs(value));
    scale = largest / largest_float8;
    if (scale == 0.0F) scale = 1.0F;
    m_norm.scales[row] = scale;
  }
  for (float& value : m_values) value /= scale;
  narrow(m_values.data(), m_norm.output, static_cast<std::byte*>(m_norm.normalized) + row * m_norm.hidden,
         m_values.size());
}

}  // namespace isthmus
