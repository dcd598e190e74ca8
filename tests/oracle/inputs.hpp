// Random inputs that any rank can compute for any other: element i of rank r is a pure function of the seed,
// r and i. So every rank checks its own result alone, without a communicator that might be the broken one.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oracle {

// A well-mixed 64-bit value of (seed, a, b). Stateless.
std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0);

enum class input_class {
  // Integers over their whole range (sums wrap); floats of both signs and many exponents whose sums and
  // products of up to 16 ranks stay clear of overflow.
  ordinary,
  // One to three of 8 elements hold NaN, infinity, the largest value, a subnormal or a zero on one rank.
  special,
};

struct input_spec {
  isthmus_datatype datatype;
  isthmus_reduction_op op;  // products get a narrower range of exponents
  input_class values;
  std::uint64_t seed;
};

// What random_bits of generator.hpp takes for the first 2^32 elements of `rank`: for programs whose kernels
// make the inputs, float32 to be summed, of the ordinary flavour.
std::uint32_t stream_key(std::uint64_t seed, int rank);

// Writes elements [first, first + out.size() / bytes) of `rank`'s send buffer.
void fill(const input_spec& source, int rank, std::uint64_t first, std::span<std::byte> out);

}  // namespace oracle
