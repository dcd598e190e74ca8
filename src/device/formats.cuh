// Device conversions of the 16-bit and 8-bit floating-point formats. `bits` is the format in memory, `value`
// the type in which elements are combined. nvcc, hipcc, NVRTC and HIPRTC compile this file, so it cannot use
// the standard library. The host version is base/formats.inc.hpp.
#ifndef ISTHMUS_DEVICE_FORMATS
#define ISTHMUS_DEVICE_FORMATS

namespace isthmus::device_formats {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;

// An 8-bit floating-point format. Elements are combined as float and rounded once, to nearest even. Values that
// are too large become the largest finite number.
template <int ExponentBits, int MantissaBits, bool HasInfinity>
struct small_float {
  using bits = u8;
  using value = float;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int dropped_bits = 23 - MantissaBits;  // bits of a float's mantissa that the format lacks
  static constexpr u32 sign = 1u << (ExponentBits + MantissaBits);
  static constexpr u32 infinity = ((1u << ExponentBits) - 1) << MantissaBits;
  static constexpr u32 nan = HasInfinity ? infinity | 1u << (MantissaBits - 1) : sign - 1;
  static constexpr u32 largest = HasInfinity ? infinity - 1 : sign - 2;

  static constexpr __device__ float power_of_two(int exponent) {
    return __builtin_bit_cast(float, static_cast<u32>(127 + exponent) << 23);
  }

  static __device__ value load(bits raw) {
    const u32 magnitude = raw & (sign - 1);
    // Shift the fields to their positions in a float, then correct the exponent bias. This is also correct
    // for subnormal numbers.
    float size = __builtin_bit_cast(float, magnitude << dropped_bits) * power_of_two(127 - bias);
    if (HasInfinity && magnitude >= infinity)
      size = __builtin_bit_cast(float, 0x7f800000u | (magnitude - infinity) << dropped_bits);
    if (!HasInfinity && magnitude == nan) size = __builtin_bit_cast(float, 0x7fc00000u);
    return (raw & sign) != 0 ? -size : size;
  }

  static __device__ bits store(value exact) {
    const u32 pattern = __builtin_bit_cast(u32, exact), magnitude = pattern & 0x7fffffffu;
    const u32 negative = pattern >> 31 << (ExponentBits + MantissaBits);
    if (magnitude > 0x7f800000u) return static_cast<bits>(negative | nan);
    u32 rounded =
        (magnitude + (1u << (dropped_bits - 1)) - 1 + ((magnitude >> dropped_bits) & 1)) >> dropped_bits;
    rounded -= static_cast<u32>(127 - bias) << MantissaBits;
    // Numbers below the smallest normal number are rounded by adding a float whose last bit is this
    // format's smallest step.
    const float step = power_of_two(24 - bias - MantissaBits);
    if (magnitude < static_cast<u32>(128 - bias) << 23)
      rounded =
          __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + step) - __builtin_bit_cast(u32, step);
    return static_cast<bits>(negative | (rounded > largest ? largest : rounded));
  }
};

// float16 and bfloat16 use the devices' conversion instructions. The arithmetic above takes about 40
// instructions per bfloat16 element.
struct float16 {
  using bits = u16;
  using value = float;
#if defined(__HIP__) || defined(__HIPCC_RTC__)
  static __device__ value load(bits raw) { return static_cast<float>(__builtin_bit_cast(_Float16, raw)); }
  static __device__ bits store(value exact) { return __builtin_bit_cast(u16, static_cast<_Float16>(exact)); }
#else
  static __device__ value load(bits raw) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(raw));
    return wide;
  }
  static __device__ bits store(value exact) {
    u16 raw;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(exact));
    return raw;
  }
#endif
};

struct bfloat16 {
  using bits = u16;
  using value = float;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  static __device__ value load(bits raw) {
    float wide;
#if __CUDA_ARCH__ >= 900
    asm("cvt.f32.bf16 %0, %1;" : "=f"(wide) : "h"(raw));
#else
    asm("mov.b32 %0, {0, %1};" : "=f"(wide) : "h"(raw));
#endif
    return wide;
  }
  static __device__ bits store(value exact) {
    u16 raw;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(raw) : "f"(exact));
    return raw;
  }
#else
  static __device__ value load(bits raw) { return __builtin_bit_cast(float, static_cast<u32>(raw) << 16); }
  static __device__ bits store(value exact) {
    const u32 pattern = __builtin_bit_cast(u32, exact);
    if (exact != exact)
      return static_cast<u16>(pattern >> 16 | 0x40u);  // keep a NaN even if its payload is cut off
    return static_cast<u16>((pattern + 0x7fffu + (pattern >> 16 & 1)) >> 16);
  }
#endif
};

struct float8_e4m3 : small_float<4, 3, false> {};
struct float8_e5m2 : small_float<5, 2, true> {};

}  // namespace isthmus::device_formats
#endif
