#include "operators/allreduce_rmsnorm/norm_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "oracle/number.hpp"
#include "topology/threads.hpp"

namespace rmsnorm_test {
namespace {

// Numbers of both signs with exponents in [first, first + range).
bytes random_values(isthmus_datatype datatype, std::uint64_t count, int first, unsigned range,
                    std::mt19937_64& random) {
  const oracle::float_format& format = oracle::format_of(datatype);
  const std::size_t width = oracle::bytes_of(datatype);
  bytes result(count * width);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    const auto exponent = static_cast<std::uint64_t>(format.bias + first) + (bits >> 40) % range;
    const std::uint64_t mantissa = bits & ((std::uint64_t{1} << format.mantissa_bits) - 1);
    const std::uint64_t sign = bits >> 63;
    oracle::store_bits(datatype, (sign << format.exponent_bits | exponent) << format.mantissa_bits | mantissa,
                       result.data() + i * width);
  }
  return result;
}

long double value(isthmus_datatype datatype, const bytes& from, std::uint64_t i) {
  return oracle::decode(datatype, from.data() + i * oracle::bytes_of(datatype));
}

void copy_row(const bytes& from, std::uint64_t row, std::uint64_t row_bytes, bytes& to) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(row * row_bytes),
            from.begin() + static_cast<std::ptrdiff_t>((row + 1) * row_bytes));
}

}  // namespace

std::string to_string(const norm_shape& shape) {
  return std::to_string(shape.tokens) + " x " + std::to_string(shape.hidden) + " " +
         isthmus_datatype_name(shape.datatype) + " to " + isthmus_datatype_name(shape.output) +
         (shape.has_row_scales ? " with scales of rows" : "") +
         (shape.round_before_weight ? ", round_before_weight" : "") + ", " + std::to_string(shape.size) +
         " ranks, seed " + std::to_string(shape.seed);
}

std::vector<norm_shape> kinds_of(norm_shape shape) {
  std::vector<norm_shape> result;
  for (const isthmus_datatype datatype : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32}) {
    shape.datatype = shape.output = datatype;
    shape.has_row_scales = false;
    result.push_back(shape);
    shape.round_before_weight = true;  // independent of the type of the output
    result.push_back(shape);
    shape.round_before_weight = false;
    shape.output = ISTHMUS_FLOAT8_E4M3;
    result.push_back(shape);
    shape.has_row_scales = true;
    result.push_back(shape);
  }
  return result;
}

norm_case::norm_case(const norm_shape& shape) : m_shape(shape) {
  std::mt19937_64 random(shape.seed);
  for (int rank = 0; rank < shape.size; ++rank)
    m_contributions.push_back(random_values(shape.datatype, shape.tokens * shape.hidden, -8, 10, random));
  m_residual = random_values(shape.datatype, shape.tokens * shape.hidden, -6, 8, random);
  m_weight = random_values(shape.datatype, shape.hidden, -2, 3, random);
  // Some elements are too large for float8.
  if (shape.output == ISTHMUS_FLOAT8_E4M3 && !shape.has_row_scales)
    m_scale = 0.002F + 0.001F * static_cast<float>(random() % 8);
  // A row of zeros.
  if (shape.tokens > 2) {
    const std::uint64_t row_bytes = shape.hidden * oracle::bytes_of(shape.datatype);
    const auto clear_row = [row_bytes](bytes& matrix) {
      std::fill_n(matrix.begin() + static_cast<std::ptrdiff_t>(row_bytes), row_bytes, std::byte{0});
    };
    clear_row(m_residual);
    for (bytes& matrix : m_contributions) clear_row(matrix);
  }
}

norm_outputs norm_case::poisoned_outputs() const {
  const std::uint64_t count = m_shape.tokens * m_shape.hidden;
  return {bytes(count * oracle::bytes_of(m_shape.datatype), std::byte{0xa5}),
          bytes(count * oracle::bytes_of(m_shape.output), std::byte{0x7e}),
          std::vector<float>(m_shape.has_row_scales ? m_shape.tokens : 0, -7.0F)};
}

isthmus_allreduce_rmsnorm_arguments norm_case::arguments(int rank, norm_outputs& outputs) const {
  isthmus_allreduce_rmsnorm_arguments result{};
  result.struct_bytes = sizeof result;
  result.tokens = m_shape.tokens;
  result.hidden = m_shape.hidden;
  result.datatype = m_shape.datatype;
  result.output = m_shape.output;
  result.eps = eps;
  result.input = contribution(rank).data();
  result.residual = m_residual.data();
  result.weight = m_weight.data();
  result.residual_out = outputs.residual.data();
  result.normalized = outputs.normalized.data();
  if (m_shape.output == ISTHMUS_FLOAT8_E4M3 && !m_shape.has_row_scales) result.scale = &m_scale;
  if (m_shape.has_row_scales) result.scales = outputs.scales.data();
  result.round_before_weight = m_shape.round_before_weight ? 1 : 0;
  return result;
}

std::string norm_case::find_error(const norm_outputs& outputs) const {
  const isthmus_datatype datatype = m_shape.datatype;
  const oracle::float_format& format = oracle::format_of(datatype);
  const oracle::float_format& float8 = oracle::format_of(ISTHMUS_FLOAT8_E4M3);
  const bool is_quantized = m_shape.output != datatype;
  const bool is_rounded_first = m_shape.round_before_weight && datatype != ISTHMUS_FLOAT32;
  const auto complain = [&](const char* what, std::uint64_t row, std::uint64_t i, long double actual,
                            long double expected) {
    return std::string(what) + " [" + std::to_string(row) + "][" + std::to_string(i) +
           "] = " + std::to_string(actual) + ", expected " + std::to_string(expected) + " | " +
           to_string(m_shape);
  };
  std::vector<long double> x(m_shape.hidden), y(m_shape.hidden);
  for (std::uint64_t row = 0; row < m_shape.tokens; ++row) {
    long double squares = 0;
    for (std::uint64_t i = 0; i < m_shape.hidden; ++i) {
      const std::uint64_t at = row * m_shape.hidden + i;
      float sum = static_cast<float>(value(datatype, m_contributions.front(), at));
      for (int rank = 1; rank < m_shape.size; ++rank)
        sum += static_cast<float>(value(datatype, contribution(rank), at));
      const auto rounded = static_cast<float>(oracle::round_to(format, static_cast<long double>(sum)));
      x[i] = oracle::round_to(
          format, static_cast<long double>(rounded + static_cast<float>(value(datatype, m_residual, at))));
      const long double actual = value(datatype, outputs.residual, at);
      if (!(actual == x[i])) return complain("residual_out", row, i, actual, x[i]);
      squares += x[i] * x[i];
    }
    const long double factor =
        1 / std::sqrt(squares / static_cast<long double>(m_shape.hidden) + static_cast<long double>(eps));
    // Errors of float32: of the sum of hidden squares (pairwise for the most part), and of a few further operations.
    const long double float32_error = std::ldexp(1.0L, -18);
    // An error of float32 can change the first rounding by one unit.
    const long double relative = (is_rounded_first ? 3 : 1) * oracle::unit_roundoff(format) + float32_error;
    long double largest = 0;
    for (std::uint64_t i = 0; i < m_shape.hidden; ++i) {
      y[i] = x[i] * factor;
      if (is_rounded_first) y[i] = oracle::round_to(format, y[i]);
      y[i] *= value(datatype, m_weight, i);
      largest = std::max(largest, std::fabs(y[i]));
    }
    long double scale = static_cast<long double>(m_scale);
    if (m_shape.has_row_scales) {
      scale = static_cast<long double>(outputs.scales[row]);
      const long double expected = largest == 0 ? 1 : largest / 448;
      if (!(std::fabs(scale - expected) <= relative * expected))
        return complain("scales", row, 0, scale, expected);
    }
    for (std::uint64_t i = 0; i < m_shape.hidden; ++i) {
      const long double actual = value(m_shape.output, outputs.normalized, row * m_shape.hidden + i);
      if (!is_quantized && is_rounded_first) {
        // The product of the rounded value and the weight is exact in float32.
        const auto is_product_of = [&](long double scaled) {
          const long double product = oracle::round_to(format, scaled) * value(datatype, m_weight, i);
          return actual == oracle::round_to(format, product);
        };
        const long double scaled = x[i] * factor;
        if (!is_product_of(scaled * (1 - float32_error)) && !is_product_of(scaled * (1 + float32_error)))
          return complain("normalized", row, i, actual, y[i]);
        continue;
      }
      if (!is_quantized) {
        if (!(std::fabs(actual - y[i]) <= relative * std::fabs(y[i]) + oracle::underflow_error(format)))
          return complain("normalized", row, i, actual, y[i]);
        continue;
      }
      const long double limit = oracle::largest_finite(float8);
      const long double expected = std::clamp(y[i] / scale, -limit, limit);
      const long double bound = (oracle::unit_roundoff(float8) + 2 * relative) * std::fabs(expected) +
                                oracle::underflow_error(float8);
      if (!(std::fabs(actual - expected) <= bound)) return complain("normalized", row, i, actual, expected);
    }
  }
  return "";
}

norm_case norm_case::select(const std::vector<std::uint64_t>& rows) const {
  norm_case result = *this;
  const std::uint64_t row_bytes = m_shape.hidden * oracle::bytes_of(m_shape.datatype);
  result.m_shape.tokens = rows.size();
  result.m_residual.clear();
  for (bytes& each : result.m_contributions) each.clear();
  for (const std::uint64_t row : rows) {
    copy_row(m_residual, row, row_bytes, result.m_residual);
    for (std::size_t rank = 0; rank < m_contributions.size(); ++rank)
      copy_row(m_contributions[rank], row, row_bytes, result.m_contributions[rank]);
  }
  return result;
}

norm_outputs norm_case::select(const norm_outputs& outputs, const std::vector<std::uint64_t>& rows) const {
  norm_outputs result;
  for (const std::uint64_t row : rows) {
    copy_row(outputs.residual, row, m_shape.hidden * oracle::bytes_of(m_shape.datatype), result.residual);
    copy_row(outputs.normalized, row, m_shape.hidden * oracle::bytes_of(m_shape.output), result.normalized);
    if (m_shape.has_row_scales) result.scales.push_back(outputs.scales[row]);
  }
  return result;
}

std::vector<std::uint64_t> sample_rows(std::uint64_t tokens, std::uint64_t most) {
  std::vector<std::uint64_t> rows;
  const std::uint64_t stride = std::max<std::uint64_t>(1, (tokens + most - 1) / most);
  for (std::uint64_t row = 0; row < tokens; row += stride) rows.push_back(row);
  if (rows.back() != tokens - 1) rows.push_back(tokens - 1);
  return rows;
}

std::vector<norm_outputs> run_on_host(const norm_case& test) {
  const auto size = static_cast<std::size_t>(test.shape().size);
  const std::vector<isthmus_device> devices(size, {ISTHMUS_PLATFORM_HOST, 0});
  std::vector<isthmus_communicator> ranks(size);
  if (isthmus_communicator_create_all(test.shape().size, devices.data(), nullptr, ranks.data()) !=
      ISTHMUS_SUCCESS)
    throw std::runtime_error("cannot create host ranks");
  std::vector<norm_outputs> outputs(size, test.poisoned_outputs());
  std::vector<std::string> errors(size);
  topology::run_on_each_rank(test.shape().size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const isthmus_allreduce_rmsnorm_arguments arguments = test.arguments(rank, outputs[r]);
    if (isthmus_allreduce_rmsnorm(ranks[r], &arguments) == ISTHMUS_SUCCESS) return;
    isthmus_error_info info{};
    isthmus_last_error(&info);
    errors[r] = std::string("rank ") + std::to_string(rank) + ": " + info.message;
  });
  for (isthmus_communicator each : ranks) isthmus_communicator_destroy(each);
  for (const std::string& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
  return outputs;
}

}  // namespace rmsnorm_test
