#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "number.hpp"

namespace oracle {
namespace {

constexpr std::uint64_t chunk = 4096;  // elements generated at a time
constexpr std::size_t most_ranks = 64;

bool any_nan(std::span<const long double> values) {
  return std::any_of(values.begin(), values.end(), [](long double value) { return std::isnan(value); });
}

// Sum or product in long double, with the magnitude that the error bound scales with.
struct accumulated {
  long double value;
  long double magnitude;
};

accumulated accumulate(isthmus_reduction_op op, std::span<const long double> values) {
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

// Products: an underflow early in the chain is multiplied by what follows, at most by `growth`.
long double growth(std::span<const long double> values) {
  long double product = 1;
  for (const long double value : values) product *= std::max(1.0L, std::fabs(value));
  return product;
}

// True when `value` rounds to something beyond the largest finite number.
bool leaves_range(const float_format& format, long double value) {
  if (std::fabs(value) <= largest_finite(format)) return false;
  float_format unlimited = format;
  unlimited.saturates = false;
  return std::isinf(round_to(unlimited, value));
}

bool contains(const float_format& format, const interval& range, long double value) {
  if (range.nan) return std::isnan(value);
  if (value >= range.low && value <= range.high) return true;  // rounding can only widen to it
  return value >= round_to(format, range.low) && value <= round_to(format, range.high);
}

// What a reduction of one type and operation over so many ranks may give.
class judge {
 public:
  judge(isthmus_datatype datatype, isthmus_reduction_op op, std::size_t ranks, bool steps_in_type)
      : m_format(format_of(datatype)),
        m_steps(m_format.rounded_once && !steps_in_type ? format_of(ISTHMUS_FLOAT32) : m_format),
        m_op(op),
        m_steps_in_type(steps_in_type),
        m_ranks(static_cast<long double>(ranks)),
        m_underflow(underflow_error(m_steps)) {
    const long double roundings = op == ISTHMUS_AVG ? m_ranks : m_ranks - 1;
    const long double ku = roundings * unit_roundoff(m_steps);
    // The oracle's own sum is not exact either; for float64 that matters.
    m_own = m_ranks * std::numeric_limits<long double>::epsilon();
    m_relative = ku / (1 - ku);
  }

  interval allowed(std::span<const long double> contributions) const;
  const float_format& format() const { return m_format; }

 private:
  const float_format& m_format;
  const float_format& m_steps;  // of every step of the accumulation
  isthmus_reduction_op m_op;
  bool m_steps_in_type;
  long double m_ranks;
  long double m_underflow;
  long double m_own;
  long double m_relative;
};

interval judge::allowed(std::span<const long double> contributions) const {
  if (any_nan(contributions)) return {0, 0, true};
  if (m_op == ISTHMUS_MIN || m_op == ISTHMUS_MAX) {
    const auto [least, most] = std::minmax_element(contributions.begin(), contributions.end());
    const long double value = m_op == ISTHMUS_MIN ? *least : *most;
    return {value, value, false};
  }
  const accumulated exact = accumulate(m_op, contributions);
  if (std::isnan(exact.value)) return {0, 0, true};
  if (std::isinf(exact.value)) {
    // Saturated at an early step, an infinity goes on as a number: the order decides.
    const bool tamed = m_steps_in_type && m_format.saturates;
    return {tamed ? -std::fabs(exact.value) : exact.value, tamed ? std::fabs(exact.value) : exact.value, false};
  }
  if (contributions.size() == 1) return {exact.value, exact.value, false};  // nothing to round

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
  bound += m_own * exact.magnitude;
  // A partial result that may leave the accumulator's range makes the order decide: nothing to hold it to.
  if (leaves_range(m_steps, largest_partial) && (m_steps.saturates || !leaves_range(m_steps, exact.value)))
    bound = std::numeric_limits<long double>::infinity();
  return {value - bound, value + bound, false};
}

std::string show(isthmus_datatype datatype, const std::byte* element) {
  if (kind_of(datatype) == kind::floating) return fmt::format("{:.9g}", decode(datatype, element));
  const std::uint64_t value = decode_integer(datatype, element);
  return kind_of(datatype) == kind::signed_integer ? fmt::format("{}", static_cast<std::int64_t>(value))
                                                   : fmt::format("{}", value);
}

std::optional<std::string> find_moved_error(const request& request, const piece& piece, const std::byte* recv) {
  const std::size_t bytes = bytes_of(request.inputs.datatype);
  std::vector<std::byte> expected(std::min(chunk, piece.count) * bytes);
  for (std::uint64_t begin = 0; begin < piece.count; begin += chunk) {
    const std::uint64_t count = std::min(chunk, piece.count - begin);
    fill(request.inputs, piece.rank, piece.send_at + begin, {expected.data(), count * bytes});
    const std::byte* actual = recv + (piece.recv_at + begin) * bytes;
    if (std::memcmp(actual, expected.data(), count * bytes) == 0) continue;
    for (std::uint64_t i = 0; i < count; ++i)
      if (std::memcmp(actual + i * bytes, expected.data() + i * bytes, bytes) != 0)
        return fmt::format("element {} is {}, expected {} (element {} of rank {})", piece.recv_at + begin + i,
                           show(request.inputs.datatype, actual + i * bytes),
                           show(request.inputs.datatype, expected.data() + i * bytes),
                           piece.send_at + begin + i, piece.rank);
  }
  return std::nullopt;
}

std::optional<std::string> check_integer(const request& request,
                                         std::span<const std::byte* const> contributions,
                                         const std::byte* actual) {
  const isthmus_datatype datatype = request.inputs.datatype;
  std::array<std::uint64_t, most_ranks> values;
  for (std::size_t r = 0; r < contributions.size(); ++r) values[r] = decode_integer(datatype, contributions[r]);
  const std::uint64_t expected =
      reduce_integers(datatype, request.inputs.op, {values.data(), contributions.size()});
  if (decode_integer(datatype, actual) == expected) return std::nullopt;
  std::byte shown[8];
  store_bits(datatype, expected, shown);
  return fmt::format("is {}, expected {}", show(datatype, actual), show(datatype, shown));
}

std::optional<std::string> check_float(const judge& judge, const request& request,
                                       std::span<const std::byte* const> contributions,
                                       const std::byte* actual) {
  const isthmus_datatype datatype = request.inputs.datatype;
  std::array<long double, most_ranks> values;
  for (std::size_t r = 0; r < contributions.size(); ++r) values[r] = decode(datatype, contributions[r]);
  const interval range = judge.allowed({values.data(), contributions.size()});
  const long double value = decode(datatype, actual);
  if (contains(judge.format(), range, value)) return std::nullopt;
  if (range.nan) return fmt::format("is {:.9g}, expected NaN", value);
  return fmt::format("is {:.9g}, expected {:.9g} to {:.9g}", value, round_to(judge.format(), range.low),
                     round_to(judge.format(), range.high));
}

std::optional<std::string> find_reduced_error(const request& request, const piece& piece,
                                              const std::byte* recv) {
  const std::size_t bytes = bytes_of(request.inputs.datatype);
  const auto size = static_cast<std::size_t>(request.what.size);
  std::vector<std::vector<std::byte>> inputs(size,
                                             std::vector<std::byte>(std::min(chunk, piece.count) * bytes));
  std::vector<const std::byte*> elements(size);
  std::optional<judge> judge;
  if (kind_of(request.inputs.datatype) == kind::floating)
    judge.emplace(request.inputs.datatype, request.inputs.op, size, request.steps_in_type);
  for (std::uint64_t begin = 0; begin < piece.count; begin += chunk) {
    const std::uint64_t count = std::min(chunk, piece.count - begin);
    for (std::size_t r = 0; r < size; ++r)
      fill(request.inputs, static_cast<int>(r), piece.send_at + begin, {inputs[r].data(), count * bytes});
    for (std::uint64_t i = 0; i < count; ++i) {
      for (std::size_t r = 0; r < size; ++r) elements[r] = inputs[r].data() + i * bytes;
      const std::byte* actual = recv + (piece.recv_at + begin + i) * bytes;
      const auto error =
          judge ? check_float(*judge, request, elements, actual) : check_integer(request, elements, actual);
      if (error) return fmt::format("element {} {}", piece.recv_at + begin + i, *error);
    }
  }
  return std::nullopt;
}

}  // namespace

interval allowed(isthmus_datatype datatype, isthmus_reduction_op op, std::span<const long double> contributions,
                 bool steps_in_type) {
  return judge(datatype, op, contributions.size(), steps_in_type).allowed(contributions);
}

bool contains(isthmus_datatype datatype, const interval& range, long double value) {
  return contains(format_of(datatype), range, value);
}

std::uint64_t reduce_integers(isthmus_datatype datatype, isthmus_reduction_op op,
                              std::span<const std::uint64_t> contributions) {
  const bool is_signed = kind_of(datatype) == kind::signed_integer;
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

std::optional<std::string> find_error(const request& request, const std::byte* recv) {
  for (const piece& piece : expected_pieces(request.what, request.rank)) {
    auto error = piece.rank == piece::all_ranks ? find_reduced_error(request, piece, recv)
                                                : find_moved_error(request, piece, recv);
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace oracle
