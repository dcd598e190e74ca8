// Random inputs that any rank can compute for any other rank: element i of rank r is a pure function of the
// seed, r and i. Each rank checks its own result, so that checks do not depend on the communicator under test.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oracle {

// Stateless 64-bit hash of (seed, a, b).
std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0);

enum class input_class {
  // Integers over their full range (sums wrap). Floating-point numbers of both signs and many exponents, whose
  // sums and products over up to 16 ranks do not overflow.
  ordinary,
  // One to three of 8 elements are NaN, infinity, the largest value, subnormal or zero on one rank.
  special,
};

struct input_spec {
  isthmus_datatype datatype;
  isthmus_reduction_op op;  // products use a narrower range of exponents
  input_class values;
  std::uint64_t seed;
};

// The key for random_bits (generator.hpp) of the first 2^32 elements of `rank`. For programs that generate
// ordinary float32 inputs of sums in kernels.
std::uint32_t stream_key(std::uint64_t seed, int rank);

// Writes elements [first, first + out.size() / bytes) of `rank`'s send buffer.
void fill(const input_spec& source, int rank, std::uint64_t first, std::span<std::byte> out);

}  // namespace oracle
