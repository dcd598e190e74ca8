#include "inputs.hpp"

#include <algorithm>
#include <cstring>

#include "generator.hpp"
#include "number.hpp"

namespace oracle {
namespace {

// The bits of the special value that `selector` chooses.
std::uint64_t special_bits(const float_format& format, std::uint64_t selector) {
  const std::uint64_t sign = (selector & 1) << (format.exponent_bits + format.mantissa_bits);
  const std::uint64_t infinity_bits = ((1ull << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint64_t mantissa = (1ull << format.mantissa_bits) - 1;
  switch ((selector >> 1) % 5) {
    case 0: return sign | infinity_bits | mantissa;  // NaN in every format
    case 1:                                          // infinity or largest
      return format.has_infinity ? sign | infinity_bits : sign | infinity_bits | (mantissa - 1);
    case 2:  // largest finite
      return format.has_infinity ? sign | (infinity_bits - 1) : sign | infinity_bits | (mantissa - 1);
    case 3: return sign | 1;  // smallest subnormal
    default: return sign;     // +0 or -0
  }
}

// True if this element is special on this rank. This is true for at most one rank.
bool is_special(const input_spec& source, int rank, std::uint64_t index) {
  const std::uint64_t draw = mix(source.seed, ~0ull, index);
  return draw % 4 == 0 && static_cast<int>((draw >> 8) % 4) == rank;
}

}  // namespace

std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  // Two rounds of the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ull * (a + 1) + 0xd1342543de82ef95ull * (b + 1);
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return x;
}

namespace {

constexpr std::uint64_t stream_length = std::uint64_t{1} << 32;

// The key of the stream for elements [n * 2^32, (n + 1) * 2^32) of a rank.
std::uint64_t stream_of(std::uint64_t seed, int rank, std::uint64_t n) {
  return mix(seed, static_cast<std::uint64_t>(rank), n);
}

// One loop per element width, so that the compiler vectorizes it: filling takes much of the time of a check.
// `Wide` holds the random bits of an element.
template <typename Bits, typename Wide>
void fill_stream(const input_spec& source, std::uint64_t stream, std::uint32_t first,
                 std::span<std::byte> out) {
  const auto key = static_cast<std::uint32_t>(stream), upper = static_cast<std::uint32_t>(stream >> 32);
  const bool floating = kind_of(source.datatype) == datatype_kind::floating, narrow = source.op == ISTHMUS_PROD;
  const float_format format = floating ? format_of(source.datatype) : float_format{};
  for (std::size_t i = 0; i < out.size() / sizeof(Bits); ++i) {
    const std::uint32_t low = random_bits(key, first + static_cast<std::uint32_t>(i));
    Wide bits = low;
    if constexpr (sizeof(Wide) == 8) bits |= static_cast<Wide>(mix_bits(low + upper)) << 32;
    if (floating) bits = ordinary_bits(bits, format.exponent_bits, format.mantissa_bits, format.bias, narrow);
    const auto element = static_cast<Bits>(bits);
    std::memcpy(out.data() + i * sizeof(Bits), &element, sizeof element);
  }
}

template <typename Bits, typename Wide>
void fill_elements(const input_spec& source, int rank, std::uint64_t first, std::span<std::byte> out) {
  const std::uint64_t end = first + out.size() / sizeof(Bits);
  for (std::uint64_t at = first; at < end;) {
    const std::uint64_t n = at / stream_length, run = std::min(end, (n + 1) * stream_length) - at;
    fill_stream<Bits, Wide>(source, stream_of(source.seed, rank, n), static_cast<std::uint32_t>(at),
                            out.subspan((at - first) * sizeof(Bits), run * sizeof(Bits)));
    at += run;
  }
}

void put_specials(const input_spec& source, int rank, std::uint64_t first, std::span<std::byte> out) {
  const std::size_t bytes = bytes_of(source.datatype);
  for (std::size_t i = 0; i < out.size() / bytes; ++i)
    if (is_special(source, rank, first + i))
      store_bits(source.datatype,
                 special_bits(format_of(source.datatype),
                              mix(source.seed, static_cast<std::uint64_t>(rank), first + i)),
                 out.data() + i * bytes);
}

}  // namespace

std::uint32_t stream_key(std::uint64_t seed, int rank) {
  return static_cast<std::uint32_t>(stream_of(seed, rank, 0));
}

void fill(const input_spec& source, int rank, std::uint64_t first, std::span<std::byte> out) {
  switch (bytes_of(source.datatype)) {
    case 1: fill_elements<std::uint8_t, std::uint32_t>(source, rank, first, out); break;
    case 2: fill_elements<std::uint16_t, std::uint32_t>(source, rank, first, out); break;
    case 4: fill_elements<std::uint32_t, std::uint32_t>(source, rank, first, out); break;
    default: fill_elements<std::uint64_t, std::uint64_t>(source, rank, first, out);
  }
  if (source.values == input_class::special && kind_of(source.datatype) == datatype_kind::floating)
    put_specials(source, rank, first, out);
}

}  // namespace oracle
