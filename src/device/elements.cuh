// The datatypes and reduction operations of the collective table on devices. nvcc, hipcc, NVRTC and HIPRTC compile this
// file, so it cannot use the standard library. The host version is src/kernels.
#ifndef ISTHMUS_DEVICE_ELEMENTS
#define ISTHMUS_DEVICE_ELEMENTS

#include "device/formats.cuh"

namespace isthmus::device_elements {

// Elements: `bits` is the format in memory, `value` the type in which they are combined.

template <typename Type>
struct plain {
  using bits = Type;
  using value = Type;
  static __device__ value load(bits raw) { return raw; }
  static __device__ bits store(value number) { return number; }
};

namespace element {

struct int8 : plain<signed char> {};
struct int16 : plain<short> {};
struct int32 : plain<int> {};
struct int64 : plain<long long> {};
struct uint8 : plain<unsigned char> {};
struct uint16 : plain<unsigned short> {};
struct uint32 : plain<unsigned int> {};
struct uint64 : plain<unsigned long long> {};
struct float32 : plain<float> {};
struct float64 : plain<double> {};
using device_formats::bfloat16;
using device_formats::float16;
using device_formats::float8_e4m3;
using device_formats::float8_e5m2;

}  // namespace element

template <typename Value>
constexpr bool is_floating = static_cast<Value>(0.5F) != Value{};

namespace operation {

// Integers wrap around, because they are added and multiplied as unsigned numbers.
struct sum {
  template <typename Value>
  static __device__ Value combine(Value a, Value b) {
    if constexpr (is_floating<Value>)
      return a + b;
    else
      return static_cast<Value>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
  }
  template <typename Value>
  static __device__ Value finish(Value total, int) {
    return total;
  }
};

struct prod : sum {
  template <typename Value>
  static __device__ Value combine(Value a, Value b) {
    if constexpr (is_floating<Value>)
      return a * b;
    else
      return static_cast<Value>(static_cast<unsigned long long>(a) * static_cast<unsigned long long>(b));
  }
};

// The result is NaN if any contribution is NaN (only NaN differs from itself). If two values are equal, for example
// zeros of different signs, the first one is kept, as in src/kernels.
struct min : sum {
  template <typename Value>
  static __device__ Value combine(Value a, Value b) {
    return b < a || b != b ? b : a;
  }
};

struct max : sum {
  template <typename Value>
  static __device__ Value combine(Value a, Value b) {
    return b > a || b != b ? b : a;
  }
};

struct avg : sum {
  template <typename Value>
  static __device__ Value finish(Value total, int size) {
    return static_cast<Value>(total / static_cast<Value>(size));
  }
};

}  // namespace operation

}  // namespace isthmus::device_elements
#endif
