// What the kernels compute, for both ways of compiling them: included by a SYCL compiler, or handed as
// text to the runtime compiler (see kernels.cpp). Therefore it includes nothing and uses no library.
#ifndef SYCL_COLLECTIVES_DEVICE_CODE_HPP
#define SYCL_COLLECTIVES_DEVICE_CODE_HPP

// One bijective mix of 32 bits (the finaliser of MurmurHash3).
inline unsigned mix_bits(unsigned x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// Random float `index` of a stream: any sign and mantissa, magnitude in [1/8, 2).
inline unsigned random_float_bits(unsigned key, unsigned index) {
  const unsigned raw = mix_bits(index * 0x9e3779b1u + key);
  return (raw >> 25 & 1u) << 31 | (124u + (raw >> 23 & 3u)) << 23 | (raw & 0x7fffffu);
}

inline float as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }

// What the consumer makes of a received element; exact for normal numbers.
inline float consumed(float received) { return received * 0.5f; }

// A NaN that no generator makes, so that an element nobody wrote is seen.
constexpr unsigned poison_bits = 0x7fa5a5a5u;

#endif
