// The random numbers behind all inputs. Programs that make their inputs by kernels compile it for the device,
// from this text if need be: it includes nothing and uses no library.
#ifndef ISTHMUS_TESTS_ORACLE_GENERATOR_HPP
#define ISTHMUS_TESTS_ORACLE_GENERATOR_HPP

namespace oracle {

// One bijective mix of 32 bits (the finaliser of MurmurHash3), which compilers vectorise.
inline unsigned mix_bits(unsigned x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// Number `index` of the stream that `key` names. The multiplier keeps streams apart whose keys are close.
inline unsigned random_bits(unsigned key, unsigned index) { return mix_bits(index * 0x9e3779b1u + key); }

// A floating-point number out of random bits: any sign and mantissa, magnitude in [2^-5, 4), or in [1/2, 2)
// where `narrow`.
template <typename Bits>
inline Bits ordinary_bits(Bits random, int exponent_bits, int mantissa_bits, int bias, bool narrow) {
  const Bits one = 1;
  const Bits draw = random >> 1 & 0x7f;
  const Bits exponent = narrow ? (draw & 1) + Bits(bias - 1) : (draw * 7 >> 7) + Bits(bias - 5);
  return (random & one) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits |
         (random >> 8 & ((one << mantissa_bits) - 1));
}

// The same for float32, where it is no factor of a product.
inline unsigned random_float32(unsigned key, unsigned index) {
  return ordinary_bits(random_bits(key, index), 8, 23, 127, false);
}

}  // namespace oracle

#endif
