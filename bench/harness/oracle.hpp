// What the result must be, from the generator alone. Moved data must be bit-equal. Integer reductions,
// min and max must be exact. Floating sums, products and averages may differ from the exact value by the
// rounding that any order of n - 1 steps in the element's own format (and one division) can cause:
//   |got - exact| <= (n + 1) * epsilon * sum of |contributions|     (sum, avg)
//   |got - exact| <= (n + 1) * epsilon * |exact|                    (prod)
// With magnitudes of at least 1/8 the smallest product of 7 ranks is 2^-21, normal in all but the narrow
// formats, for which one smallest subnormal is added to the bound.
#pragma once

#include <algorithm>
#include <vector>

#include "data.hpp"
#include "options.hpp"

namespace bench {

// How many elements each buffer of a rank has; 0: the rank does not use it.
struct extent {
  std::uint64_t send, recv;
};

inline extent extent_of(pattern what, std::uint64_t count, int rank, int size) {
  const std::uint64_t all = count * static_cast<std::uint64_t>(size);
  const bool root = rank == 0;
  switch (what) {
    case pattern::broadcast: return {root ? count : 0, count};
    case pattern::reduce: return {count, root ? count : 0};
    case pattern::allreduce: return {count, count};
    case pattern::reduce_scatter: return {all, count};
    case pattern::allgather: return {count, all};
    case pattern::gather: return {count, root ? all : 0};
    case pattern::scatter: return {root ? all : 0, count};
    case pattern::alltoall: return {all, all};
    case pattern::sendrecv: return {count, count};
    case pattern::ping: return rank < 2 ? extent{count, count} : extent{0, 0};
    case pattern::barrier: return {0, 0};
  }
  return {0, 0};
}

// `length` elements at `recv_at` come from `source_at` in the send buffer of `source` (-1: reduced over
// all ranks).
struct segment {
  std::uint64_t recv_at;
  int source;
  std::uint64_t source_at, length;
};

inline std::vector<segment> segments_of(pattern what, std::uint64_t count, int rank, int size) {
  const auto me = static_cast<std::uint64_t>(rank);
  std::vector<segment> blocks;
  switch (what) {
    case pattern::broadcast: return {{0, 0, 0, count}};
    case pattern::reduce:
      if (rank == 0) blocks.push_back({0, -1, 0, count});
      return blocks;
    case pattern::allreduce: return {{0, -1, 0, count}};
    case pattern::reduce_scatter: return {{0, -1, me * count, count}};
    case pattern::gather:
      if (rank != 0) return blocks;
      [[fallthrough]];
    case pattern::allgather:
      for (int r = 0; r < size; ++r) blocks.push_back({static_cast<std::uint64_t>(r) * count, r, 0, count});
      return blocks;
    case pattern::scatter: return {{0, 0, me * count, count}};
    case pattern::alltoall:
      for (int r = 0; r < size; ++r)
        blocks.push_back({static_cast<std::uint64_t>(r) * count, r, me * count, count});
      return blocks;
    case pattern::sendrecv: return {{0, (rank + size - 1) % size, 0, count}};
    case pattern::ping:
      if (rank < 2) blocks.push_back({0, 1 - rank, 0, count});
      return blocks;
    case pattern::barrier: return blocks;
  }
  return blocks;
}

namespace detail {

template <typename Element>
bool reduced_right(const std::vector<stream_key>& keys, std::uint32_t index, isthmus_reduction_op op,
                   typename Element::bits got_bits) {
  using value = typename Element::value;
  const auto ranks = keys.size();
  if constexpr (Element::floating) {
    long double exact = op == ISTHMUS_PROD ? 1 : 0, magnitudes = 0;
    double low = INFINITY, high = -INFINITY;
    for (const stream_key& key : keys) {
      const double x = Element::decode(random_bits<Element>(key, index));
      exact = op == ISTHMUS_PROD ? exact * x : exact + x;
      magnitudes += std::fabs(x);
      low = std::min(low, x), high = std::max(high, x);
    }
    const double got = Element::decode(got_bits);
    if (op == ISTHMUS_MIN) return got == low;
    if (op == ISTHMUS_MAX) return got == high;
    const long double scale = op == ISTHMUS_PROD ? std::fabs(exact) : magnitudes;
    const double subnormal = std::ldexp(1.0, 1 - Element::format.bias() - Element::format.mantissa_bits);
    const long double divisor = op == ISTHMUS_AVG ? static_cast<long double>(ranks) : 1;
    const long double bound =
        ((static_cast<long double>(ranks) + 1) * Element::format.epsilon() * scale + subnormal) / divisor;
    return std::fabs(got - exact / divisor) <= bound;
  } else {
    using wide = std::conditional_t<std::is_signed_v<value>, std::int64_t, std::uint64_t>;
    std::uint64_t folded = op == ISTHMUS_PROD ? 1 : 0;  // unsigned: wraps
    value low = std::numeric_limits<value>::max(), high = std::numeric_limits<value>::lowest();
    for (const stream_key& key : keys) {
      const value x = Element::decode(random_bits<Element>(key, index));
      const auto extended = static_cast<std::uint64_t>(static_cast<wide>(x));
      folded = op == ISTHMUS_PROD ? folded * extended : folded + extended;
      low = std::min(low, x), high = std::max(high, x);
    }
    const value got = Element::decode(got_bits), wrapped = static_cast<value>(folded);
    switch (op) {
      case ISTHMUS_MIN: return got == low;
      case ISTHMUS_MAX: return got == high;
      case ISTHMUS_AVG: return got == static_cast<value>(static_cast<wide>(wrapped) / static_cast<wide>(ranks));
      default: return got == wrapped;
    }
  }
}

template <typename Element>
std::uint64_t wrong_elements(const segment& part, const std::vector<stream_key>& keys, isthmus_reduction_op op,
                             const typename Element::bits* recv) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < part.length; ++i) {
    const auto index = static_cast<std::uint32_t>(part.source_at + i);
    const auto got = recv[part.recv_at + i];
    if (part.source >= 0)
      wrong += got != random_bits<Element>(keys[static_cast<std::size_t>(part.source)], index);
    else
      wrong += !reduced_right<Element>(keys, index, op, got);
  }
  return wrong;
}

}  // namespace detail

// Elements of this rank's receive buffer that differ from what they must be after call `call`.
inline std::uint64_t count_wrong(const options& asked, std::uint64_t count, std::uint64_t call, int rank,
                                 int size, const void* recv) {
  std::vector<stream_key> keys;
  for (int r = 0; r < size; ++r) keys.emplace_back(asked.seed, call, r);
  std::uint64_t wrong = 0;
  for (const segment& part : segments_of(asked.what, count, rank, size))
    wrong += with_element(asked.datatype, [&](auto type) {
      using element_type = decltype(type);
      return detail::wrong_elements<element_type>(part, keys, asked.op,
                                                  static_cast<const typename element_type::bits*>(recv));
    });
  return wrong;
}

// FNV-1a over 8-byte words: tells whether two ranks hold the same bits.
inline std::uint64_t digest(const void* data, std::uint64_t bytes) {
  const auto* cursor = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (; bytes >= 8; bytes -= 8, cursor += 8) {
    std::uint64_t word;
    std::memcpy(&word, cursor, 8);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  for (; bytes > 0; --bytes, ++cursor) hash = (hash ^ *cursor) * 0x100000001b3u;
  return hash;
}

}  // namespace bench
