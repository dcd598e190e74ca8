#include "inputs.hpp"

#include <cstring>

#include "number.hpp"

namespace oracle {
namespace {

// The bits of a special value; `pick` chooses which.
std::uint64_t special_bits(const float_format& format, std::uint64_t pick) {
  const std::uint64_t sign = (pick & 1) << (format.exponent_bits + format.mantissa_bits);
  const std::uint64_t top = ((1ull << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint64_t mantissa = (1ull << format.mantissa_bits) - 1;
  switch ((pick >> 1) % 5) {
    case 0: return sign | top | mantissa;                                           // NaN in every format
    case 1: return format.has_infinity ? sign | top : sign | top | (mantissa - 1);  // infinity, else largest
    case 2: return format.has_infinity ? sign | (top - 1) : sign | top | (mantissa - 1);  // largest finite
    case 3: return sign | 1;                                                              // smallest subnormal
    default: return sign;                                                                 // +0 or -0
  }
}

std::uint64_t ordinary_bits(const float_format& format, isthmus_reduction_op op, std::uint64_t random) {
  const std::uint64_t sign = (random & 1) << (format.exponent_bits + format.mantissa_bits);
  // Products: [0.5, 2), so that 7 of them fit e4m3; sums: [2^-5, 4).
  const int exponent =
      op == ISTHMUS_PROD ? static_cast<int>((random >> 1) % 2) - 1 : static_cast<int>((random >> 1) % 7) - 5;
  const std::uint64_t mantissa = (random >> 8) & ((1ull << format.mantissa_bits) - 1);
  return sign | static_cast<std::uint64_t>(exponent + format.bias) << format.mantissa_bits | mantissa;
}

// True when this rank holds a special value at this element: at most one rank does.
bool is_special(const source& source, int rank, std::uint64_t index) {
  const std::uint64_t draw = mix(source.seed, ~0ull, index);
  return draw % 4 == 0 && static_cast<int>((draw >> 8) % 4) == rank;
}

}  // namespace

std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  // Two rounds of the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ull * (a + 1) + 0xd1342543de82ef95ull * (b + 1);
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return x;
}

namespace {

// One loop for each width, so that the compiler sees it: filling takes much of a check's time.
template <typename Bits>
void fill_as(const source& source, int rank, std::uint64_t first, std::span<std::byte> out) {
  const float_format* format =
      kind_of(source.datatype) == kind::floating ? &format_of(source.datatype) : nullptr;
  const bool special = source.what == flavour::special;
  for (std::size_t i = 0; i < out.size() / sizeof(Bits); ++i) {
    std::uint64_t bits = mix(source.seed, static_cast<std::uint64_t>(rank), first + i);
    if (format != nullptr)
      bits = special && is_special(source, rank, first + i) ? special_bits(*format, bits)
                                                            : ordinary_bits(*format, source.op, bits);
    const auto element = static_cast<Bits>(bits);
    std::memcpy(out.data() + i * sizeof(Bits), &element, sizeof element);
  }
}

}  // namespace

void fill(const source& source, int rank, std::uint64_t first, std::span<std::byte> out) {
  switch (bytes_of(source.datatype)) {
    case 1: return fill_as<std::uint8_t>(source, rank, first, out);
    case 2: return fill_as<std::uint16_t>(source, rank, first, out);
    case 4: return fill_as<std::uint32_t>(source, rank, first, out);
    default: return fill_as<std::uint64_t>(source, rank, first, out);
  }
}

}  // namespace oracle
