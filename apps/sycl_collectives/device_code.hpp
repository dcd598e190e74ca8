// Device code of the kernels, for both ways of compiling them (apps/common/kernel.hpp), compiled after the
// oracle's generator. It includes no headers and uses no library.
#ifndef SYCL_COLLECTIVES_DEVICE_CODE_HPP
#define SYCL_COLLECTIVES_DEVICE_CODE_HPP

namespace sycl_collectives {

inline float as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }

// The consumer's result for a received element, and its inverse; exact for normal numbers.
inline float consumed(float element) { return element * 0.5f; }
inline float received(float element) { return element * 2; }

// A NaN that the generator never produces, so that an element that was not written is detected.
constexpr unsigned poison_bits = 0x7fa5a5a5u;

// Writes random float i of stream `key`.
struct filler {
  static constexpr const char* name = "sycl_collectives::filler";
  unsigned key;
  void operator()(unsigned long, unsigned long i, float* data) const {
    data[i] = as_float(oracle::random_float32(key, static_cast<unsigned>(i)));
  }
};

struct poisoner {
  static constexpr const char* name = "sycl_collectives::poisoner";
  void operator()(unsigned long, unsigned long i, float* data) const { data[i] = as_float(poison_bits); }
};

struct consumer {
  static constexpr const char* name = "sycl_collectives::consumer";
  void operator()(unsigned long, unsigned long i, float* data) const { data[i] = consumed(data[i]); }
};

}  // namespace sycl_collectives

#endif
