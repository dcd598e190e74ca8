// Random number generator of all test inputs. It includes nothing and uses no library, because programs that
// generate inputs in kernels also compile it for the device, some of them from source text at run time.
#ifndef ISTHMUS_TESTS_ORACLE_GENERATOR_HPP
#define ISTHMUS_TESTS_ORACLE_GENERATOR_HPP

namespace oracle {

// Bijective 32-bit mix (the finalizer of MurmurHash3), which compilers vectorize.
inline unsigned mix_bits(unsigned x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// Number `index` of the stream with this key. The multiplier decorrelates streams with similar keys.
inline unsigned random_bits(unsigned key, unsigned index) { return mix_bits(index * 0x9e3779b1u + key); }

// Converts random bits to a floating-point number with any sign and mantissa, and a magnitude in [2^-5, 4), or
// in [1/2, 2) if `narrow`.
template <typename Bits>
inline Bits ordinary_bits(Bits random, int exponent_bits, int mantissa_bits, int bias, bool narrow) {
  const Bits one = 1;
  const Bits draw = random >> 1 & 0x7f;
  const Bits exponent = narrow ? (draw & 1) + Bits(bias - 1) : (draw * 7 >> 7) + Bits(bias - 5);
  return (random & one) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits |
         (random >> 8 & ((one << mantissa_bits) - 1));
}

// A random float32 for operations other than products.
inline unsigned random_float32(unsigned key, unsigned index) {
  return ordinary_bits(random_bits(key, index), 8, 23, 127, false);
}

}  // namespace oracle

#endif
