#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "number.hpp"

namespace oracle {
namespace {

constexpr std::uint64_t chunk = 4096;  // elements generated at a time
constexpr std::size_t max_ranks = 64;

bool any_nan(std::span<const long double> values) {
  return std::any_of(values.begin(), values.end(), [](long double value) { return std::isnan(value); });
}

// Sum or product in long double, and the magnitude that scales the error bound.
struct accumulated_value {
  long double value;
  long double magnitude;
};

accumulated_value accumulate(isthmus_reduction_op op, std::span<const long double> values) {
  if (op == ISTHMUS_PROD) {
    long double product = 1;
    for (const long double value : values) product *= value;
    return {product, std::fabs(product)};
  }
  long double sum = 0;
  long double magnitude = 0;
  for (const long double value : values) {
    sum += value;
    magnitude += std::fabs(value);
  }
  return {sum, magnitude};
}

// Upper bound of the factor by which later factors of a product amplify an early underflow.
long double growth(std::span<const long double> values) {
  long double product = 1;
  for (const long double value : values) product *= std::max(1.0L, std::fabs(value));
  return product;
}

// True if `value` rounds to more than the largest finite number.
bool overflows(const float_format& format, long double value) {
  if (std::fabs(value) <= largest_finite(format)) return false;
  float_format unlimited = format;
  unlimited.saturates = false;
  return std::isinf(round_to(unlimited, value));
}

bool contains(const float_format& format, const interval& range, long double value) {
  if (range.is_nan) return std::isnan(value);
  if (value >= range.low && value <= range.high) return true;  // rounding only widens the range
  return value >= round_to(format, range.low) && value <= round_to(format, range.high);
}

// Allowed results of a reduction of one type and operation over a number of ranks.
class reduction_tolerance {
 public:
  reduction_tolerance(isthmus_datatype datatype, isthmus_reduction_op op, std::size_t ranks, bool steps_in_type)
      : m_format(format_of(datatype)),
        m_steps(m_format.rounded_once && !steps_in_type ? format_of(ISTHMUS_FLOAT32) : m_format),
        m_op(op),
        m_steps_in_type(steps_in_type),
        m_ranks(static_cast<long double>(ranks)),
        m_underflow(underflow_error(m_steps)) {
    const long double roundings = op == ISTHMUS_AVG ? m_ranks : m_ranks - 1;
    const long double ku = roundings * unit_roundoff(m_steps);
    // The oracle's own sum is also inexact, which matters for float64.
    m_oracle_error = m_ranks * std::numeric_limits<long double>::epsilon();
    m_relative = ku / (1 - ku);
  }

  interval allowed(std::span<const long double> contributions) const;
  const float_format& format() const { return m_format; }
  // Upper bound of all rounding errors of a sum, relative to the sum of magnitudes.
  long double relative_bound() const { return m_relative; }

 private:
  const float_format& m_format;
  const float_format& m_steps;  // format of the accumulator
  isthmus_reduction_op m_op;
  bool m_steps_in_type;
  long double m_ranks;
  long double m_underflow;
  long double m_oracle_error;
  long double m_relative;
};

interval reduction_tolerance::allowed(std::span<const long double> contributions) const {
  if (any_nan(contributions)) return {0, 0, true};
  if (m_op == ISTHMUS_MIN || m_op == ISTHMUS_MAX) {
    const auto [min, max] = std::minmax_element(contributions.begin(), contributions.end());
    const long double value = m_op == ISTHMUS_MIN ? *min : *max;
    return {value, value, false};
  }
  const accumulated_value exact = accumulate(m_op, contributions);
  if (std::isnan(exact.value)) return {0, 0, true};
  if (std::isinf(exact.value)) {
    // If an early step saturates, infinity becomes a finite number, so the result depends on the order.
    const bool is_saturated = m_steps_in_type && m_format.saturates;
    return {is_saturated ? -std::fabs(exact.value) : exact.value,
            is_saturated ? std::fabs(exact.value) : exact.value, false};
  }
  if (contributions.size() == 1) return {exact.value, exact.value, false};  // no rounding

  long double value = exact.value;
  long double bound = m_relative * exact.magnitude;
  long double largest_partial = exact.magnitude;
  if (m_op == ISTHMUS_PROD) {
    largest_partial = growth(contributions);
    bound += (m_ranks - 1) * m_underflow * largest_partial;
  }
  if (m_op == ISTHMUS_AVG) {
    value /= m_ranks;
    bound = bound / m_ranks + m_underflow;
  }
  bound += m_oracle_error * exact.magnitude;
  // If a partial result can overflow the accumulator, the result depends on the order and cannot be bounded.
  if (overflows(m_steps, largest_partial) && (m_steps.saturates || !overflows(m_steps, exact.value)))
    bound = std::numeric_limits<long double>::infinity();
  return {value - bound, value + bound, false};
}

std::string format_element(isthmus_datatype datatype, const std::byte* element) {
  if (kind_of(datatype) == datatype_kind::floating) return fmt::format("{:.9g}", decode(datatype, element));
  const std::uint64_t value = decode_integer(datatype, element);
  return kind_of(datatype) == datatype_kind::signed_integer
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : fmt::format("{}", value);
}

// Receives the index and the description of each wrong element. Returns true to stop.
using error_sink = std::function<bool(std::uint64_t index, const std::function<std::string()>& describe)>;

// Returns false if `sink` requested to stop.
bool check_moved(const check_request& request, const expected_segment& segment, const std::byte* recv,
                 const error_sink& sink) {
  const isthmus_datatype datatype = request.inputs.datatype;
  const std::size_t bytes = bytes_of(datatype);
  std::vector<std::byte> expected(std::min(chunk, segment.count) * bytes);
  for (std::uint64_t begin = 0; begin < segment.count; begin += chunk) {
    const std::uint64_t count = std::min(chunk, segment.count - begin);
    fill(request.inputs, segment.rank, segment.send_offset + begin, {expected.data(), count * bytes});
    const std::byte* actual = recv + (segment.recv_offset + begin) * bytes;
    if (std::memcmp(actual, expected.data(), count * bytes) == 0) continue;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::byte *actual_element = actual + i * bytes, *expected_element = expected.data() + i * bytes;
      if (std::memcmp(actual_element, expected_element, bytes) == 0) continue;
      const auto describe = [&] {
        return fmt::format("is {}, expected {} (element {} of rank {})",
                           format_element(datatype, actual_element), format_element(datatype, expected_element),
                           segment.send_offset + begin + i, segment.rank);
      };
      if (sink(segment.recv_offset + begin + i, describe)) return false;
    }
  }
  return true;
}

// Contributions of all ranks to one chunk of a result.
class input_chunk {
 public:
  input_chunk(const check_request& request, std::uint64_t max_elements)
      : m_inputs(request.inputs),
        m_bytes(bytes_of(request.inputs.datatype)),
        m_ranks(static_cast<std::size_t>(request.shape.size), std::vector<std::byte>(max_elements * m_bytes)) {}

  void fill(std::uint64_t first, std::uint64_t count) {
    for (std::size_t r = 0; r < m_ranks.size(); ++r)
      oracle::fill(m_inputs, static_cast<int>(r), first, {m_ranks[r].data(), count * m_bytes});
  }
  std::size_t ranks() const { return m_ranks.size(); }
  const std::byte* element(std::size_t rank, std::uint64_t i) const {
    return m_ranks[rank].data() + i * m_bytes;
  }

 private:
  input_spec m_inputs;
  std::size_t m_bytes;
  std::vector<std::vector<std::byte>> m_ranks;
};

// Checks single elements of a reduction.
class reduction_check {
 public:
  explicit reduction_check(const check_request& request)
      : m_datatype(request.inputs.datatype), m_op(request.inputs.op), m_size(request.shape.size) {
    if (kind_of(m_datatype) == datatype_kind::floating)
      m_tolerance.emplace(m_datatype, m_op, static_cast<std::size_t>(m_size), request.steps_in_type);
  }

  // Fast path for float32 sums: marks elements that are certainly correct, using vectorizable float64 loops.
  // Nearly all elements pass. The bound is slightly tighter than the exact one because float64 also rounds.
  // Elements whose magnitudes are not finite or close to overflow are not marked.
  void mark_certainly_correct(const input_chunk& inputs, std::uint64_t count, const std::byte* actual) {
    const bool is_average = m_op == ISTHMUS_AVG;
    m_certainly_correct.assign(count, 0);
    if (m_datatype != ISTHMUS_FLOAT32 || (m_op != ISTHMUS_SUM && !is_average)) return;
    std::vector<double> sums(count), magnitudes(count);
    for (std::size_t r = 0; r < inputs.ranks(); ++r)
      for (std::uint64_t i = 0; i < count; ++i) {
        const double value = float_at(inputs.element(r, i));
        sums[i] += value, magnitudes[i] += std::fabs(value);
      }
    const auto bound = static_cast<double>(m_tolerance->relative_bound()) * (1 - 0x1p-20);
    const double divisor = is_average ? m_size : 1;
    for (std::uint64_t i = 0; i < count; ++i) {
      const double error = std::fabs(float_at(actual + i * sizeof(float)) - sums[i] / divisor);
      m_certainly_correct[i] = error <= bound * magnitudes[i] / divisor && magnitudes[i] < 1e30;
    }
  }

  std::optional<std::string> operator()(const input_chunk& inputs, std::uint64_t i, const std::byte* actual) {
    if (m_certainly_correct[i] != 0) return std::nullopt;
    return m_tolerance ? check_float(inputs, i, actual) : check_integer(inputs, i, actual);
  }

 private:
  static float float_at(const std::byte* element) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }

  std::optional<std::string> check_integer(const input_chunk& inputs, std::uint64_t i,
                                           const std::byte* actual) const {
    std::array<std::uint64_t, max_ranks> values;
    for (std::size_t r = 0; r < inputs.ranks(); ++r)
      values[r] = decode_integer(m_datatype, inputs.element(r, i));
    const std::uint64_t expected = reduce_integers(m_datatype, m_op, {values.data(), inputs.ranks()});
    if (decode_integer(m_datatype, actual) == expected) return std::nullopt;
    std::byte expected_bytes[8];
    store_bits(m_datatype, expected, expected_bytes);
    return fmt::format("is {}, expected {}", format_element(m_datatype, actual),
                       format_element(m_datatype, expected_bytes));
  }

  std::optional<std::string> check_float(const input_chunk& inputs, std::uint64_t i,
                                         const std::byte* actual) const {
    std::array<long double, max_ranks> values;
    for (std::size_t r = 0; r < inputs.ranks(); ++r) values[r] = decode(m_datatype, inputs.element(r, i));
    const interval range = m_tolerance->allowed({values.data(), inputs.ranks()});
    const long double value = decode(m_datatype, actual);
    if (contains(m_tolerance->format(), range, value)) return std::nullopt;
    if (range.is_nan) return fmt::format("is {:.9g}, expected NaN", value);
    return fmt::format("is {:.9g}, expected {:.9g} to {:.9g}", value,
                       round_to(m_tolerance->format(), range.low), round_to(m_tolerance->format(), range.high));
  }

  isthmus_datatype m_datatype;
  isthmus_reduction_op m_op;
  int m_size;
  std::optional<reduction_tolerance> m_tolerance;  // floating-point types only
  std::vector<unsigned char> m_certainly_correct;
};

// Returns false if `sink` requested to stop.
bool check_reduced(const check_request& request, const expected_segment& segment, const std::byte* recv,
                   const error_sink& sink) {
  const std::size_t bytes = bytes_of(request.inputs.datatype);
  input_chunk inputs(request, std::min(chunk, segment.count));
  reduction_check check(request);
  for (std::uint64_t begin = 0; begin < segment.count; begin += chunk) {
    const std::uint64_t count = std::min(chunk, segment.count - begin);
    const std::byte* actual = recv + (segment.recv_offset + begin) * bytes;
    inputs.fill(segment.send_offset + begin, count);
    check.mark_certainly_correct(inputs, count, actual);
    for (std::uint64_t i = 0; i < count; ++i)
      if (const auto error = check(inputs, i, actual + i * bytes))
        if (sink(segment.recv_offset + begin + i, [&] { return *error; })) return false;
  }
  return true;
}

void check_segments(const check_request& request, const std::byte* recv, const error_sink& sink) {
  for (const expected_segment& segment : expected_segments(request.shape, request.rank))
    if (!(segment.rank == expected_segment::all_ranks ? check_reduced : check_moved)(request, segment, recv,
                                                                                     sink))
      return;
}

}  // namespace

interval allowed(isthmus_datatype datatype, isthmus_reduction_op op, std::span<const long double> contributions,
                 bool steps_in_type) {
  return reduction_tolerance(datatype, op, contributions.size(), steps_in_type).allowed(contributions);
}

bool contains(isthmus_datatype datatype, const interval& range, long double value) {
  return contains(format_of(datatype), range, value);
}

std::uint64_t reduce_integers(isthmus_datatype datatype, isthmus_reduction_op op,
                              std::span<const std::uint64_t> contributions) {
  const bool is_signed = kind_of(datatype) == datatype_kind::signed_integer;
  const auto less = [&](std::uint64_t a, std::uint64_t b) {
    return is_signed ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  };
  const auto wrap = [&](std::uint64_t value) {
    std::byte element[8];
    store_bits(datatype, value, element);
    return decode_integer(datatype, element);
  };
  std::uint64_t result = contributions.front();
  for (const std::uint64_t value : contributions.subspan(1)) {
    switch (op) {
      case ISTHMUS_SUM:
      case ISTHMUS_AVG: result += value; break;
      case ISTHMUS_PROD: result *= value; break;
      case ISTHMUS_MIN: result = less(value, result) ? value : result; break;
      case ISTHMUS_MAX: result = less(result, value) ? value : result; break;
      case ISTHMUS_REDUCTION_OP_COUNT: break;
    }
  }
  result = wrap(result);
  if (op != ISTHMUS_AVG) return result;
  const std::uint64_t n = contributions.size();
  if (!is_signed) return result / n;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(result) / static_cast<std::int64_t>(n));
}

std::optional<std::string> find_error(const check_request& request, const std::byte* recv) {
  std::optional<std::string> first;
  check_segments(request, recv, [&](std::uint64_t index, const std::function<std::string()>& describe) {
    first = fmt::format("element {} {}", index, describe());
    return true;
  });
  return first;
}

std::uint64_t count_errors(const check_request& request, const std::byte* recv) {
  std::uint64_t errors = 0;
  check_segments(request, recv, [&](std::uint64_t, const std::function<std::string()>&) {
    ++errors;
    return false;
  });
  return errors;
}

}  // namespace oracle
