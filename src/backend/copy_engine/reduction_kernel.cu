// Combines what the ranks sent to this one: result[i] = contribution 0 [i], ..., contribution size-1 [i], in
// rank order, so that the result does not depend on what arrived first. Compiled while the program runs, by
// NVRTC or HIPRTC, for one datatype and one operation of THE TABLE at a time:
//   ISTHMUS_ELEMENT    a name of namespace `element`
//   ISTHMUS_OPERATION  a name of namespace `operation`
// There is no standard library here.
#include "backend/copy_engine/reduction_arguments.hpp"

namespace isthmus::copy_engine {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// ---- elements: `bits` as they lie in memory, `value` as they are combined --------------------------------

template <typename Type>
struct plain {
  using bits = Type;
  using value = Type;
  static __device__ value load(bits raw) { return raw; }
  static __device__ bits store(value exact) { return exact; }
};

// A floating-point format of 8 bits: combined as float and rounded once, to nearest even, at most to the
// largest.
template <int ExponentBits, int MantissaBits, bool HasInfinity>
struct small_float {
  using bits = u8;
  using value = float;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int dropped = 23 - MantissaBits;  // digits of a float's mantissa
  static constexpr u32 sign = 1u << (ExponentBits + MantissaBits);
  static constexpr u32 infinity = ((1u << ExponentBits) - 1) << MantissaBits;
  static constexpr u32 nan = HasInfinity ? infinity | 1u << (MantissaBits - 1) : sign - 1;
  static constexpr u32 largest = HasInfinity ? infinity - 1 : sign - 2;

  static constexpr __device__ float power_of_two(int exponent) {
    return __builtin_bit_cast(float, static_cast<u32>(127 + exponent) << 23);
  }

  static __device__ value load(bits raw) {
    const u32 magnitude = raw & (sign - 1);
    // The fields in a float's places; its exponent counts from another start, also of subnormal numbers.
    float size = __builtin_bit_cast(float, magnitude << dropped) * power_of_two(127 - bias);
    if (HasInfinity && magnitude >= infinity)
      size = __builtin_bit_cast(float, 0x7f800000u | (magnitude - infinity) << dropped);
    if (!HasInfinity && magnitude == nan) size = __builtin_bit_cast(float, 0x7fc00000u);
    return (raw & sign) != 0 ? -size : size;
  }

  static __device__ bits store(value exact) {
    const u32 whole = __builtin_bit_cast(u32, exact), magnitude = whole & 0x7fffffffu;
    const u32 negative = whole >> 31 << (ExponentBits + MantissaBits);
    if (magnitude > 0x7f800000u) return static_cast<bits>(negative | nan);
    u32 rounded = (magnitude + (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1)) >> dropped;
    rounded -= static_cast<u32>(127 - bias) << MantissaBits;
    // Below the smallest normal number, a float whose last digit is this format's smallest step rounds.
    const float step = power_of_two(24 - bias - MantissaBits);
    if (magnitude < static_cast<u32>(128 - bias) << 23)
      rounded =
          __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + step) - __builtin_bit_cast(u32, step);
    return static_cast<bits>(negative | (rounded > largest ? largest : rounded));
  }
};

// float16 and bfloat16 are common enough for the devices' own conversions, which take one instruction: by
// the arithmetic above, an element of bfloat16 took some 40 instructions.
inline __device__ float widened_brain(u16 raw) {
  return __builtin_bit_cast(float, static_cast<u32>(raw) << 16);
}
#if defined(__HIP__) || defined(__HIPCC_RTC__)
inline __device__ float widened(u16 raw) { return static_cast<float>(__builtin_bit_cast(_Float16, raw)); }
inline __device__ u16 narrowed(float exact) { return __builtin_bit_cast(u16, static_cast<_Float16>(exact)); }
#else
inline __device__ float widened(u16 raw) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(raw));
  return wide;
}
inline __device__ u16 narrowed(float exact) {
  u16 raw;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(exact));
  return raw;
}
#endif
inline __device__ u16 narrowed_brain(float exact) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u16 raw;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(raw) : "f"(exact));
  return raw;
#else
  const u32 whole = __builtin_bit_cast(u32, exact);
  if (exact != exact) return static_cast<u16>(whole >> 16 | 0x40u);  // a NaN whose digits may all be dropped
  return static_cast<u16>((whole + 0x7fffu + (whole >> 16 & 1)) >> 16);
#endif
}

namespace element {

struct int8 : plain<signed char> {};
struct int16 : plain<short> {};
struct int32 : plain<int> {};
struct int64 : plain<long long> {};
struct uint8 : plain<u8> {};
struct uint16 : plain<u16> {};
struct uint32 : plain<u32> {};
struct uint64 : plain<u64> {};
struct float32 : plain<float> {};
struct float64 : plain<double> {};
struct float16 {
  using bits = u16;
  using value = float;
  static __device__ value load(bits raw) { return widened(raw); }
  static __device__ bits store(value exact) { return narrowed(exact); }
};
struct bfloat16 {
  using bits = u16;
  using value = float;
  static __device__ value load(bits raw) { return widened_brain(raw); }
  static __device__ bits store(value exact) { return narrowed_brain(exact); }
};
struct float8_e4m3 : small_float<4, 3, false> {};
struct float8_e5m2 : small_float<5, 2, true> {};

}  // namespace element

// ---- operations -------------------------------------------------------------------------------------------

template <typename Value>
constexpr bool is_floating = static_cast<Value>(0.5F) != Value{};

namespace operation {

// Integers wrap around: they are added and multiplied without sign.
struct sum {
  template <typename Value>
  static __device__ Value join(Value a, Value b) {
    if constexpr (is_floating<Value>)
      return a + b;
    else
      return static_cast<Value>(static_cast<u64>(a) + static_cast<u64>(b));
  }
  template <typename Value>
  static __device__ Value end(Value total, int) {
    return total;
  }
};

struct prod : sum {
  template <typename Value>
  static __device__ Value join(Value a, Value b) {
    if constexpr (is_floating<Value>)
      return a * b;
    else
      return static_cast<Value>(static_cast<u64>(a) * static_cast<u64>(b));
  }
};

// NaN where any contribution is NaN, which alone differs from itself.
struct min : sum {
  template <typename Value>
  static __device__ Value join(Value a, Value b) {
    return a != a || a < b ? a : b;
  }
};

struct max : sum {
  template <typename Value>
  static __device__ Value join(Value a, Value b) {
    return a != a || b < a ? a : b;
  }
};

struct avg : sum {
  template <typename Value>
  static __device__ Value end(Value total, int size) {
    return static_cast<Value>(total / static_cast<Value>(size));
  }
};

}  // namespace operation

// ---- the kernel ---------------------------------------------------------------------------------------------

template <typename Element, typename Operation>
struct combination {
  using bits = typename Element::bits;
  using value = typename Element::value;
  static constexpr int lanes = 16 / sizeof(bits);

  template <bool Aligned>
  struct alignas(Aligned ? 16 : sizeof(bits)) pack {
    bits at[lanes];
  };

  template <typename Unit>
  static __device__ const Unit* row(const reduction_arguments& all, int source) {
    const u64 before = static_cast<u64>(source > all.rank ? source - 1 : source) * all.row_bytes;
    return reinterpret_cast<const Unit*>(static_cast<const char*>(all.others) + before);
  }

  static __device__ void join(value& total, bits next, bool first) {
    const value loaded = Element::load(next);
    total = first ? loaded : Operation::join(total, loaded);
  }

  // What does not fill a pack.
  static __device__ void one(const reduction_arguments& all, u64 at) {
    value total{};
    for (int source = 0; source < all.size; ++source)
      join(total, source == all.rank ? static_cast<const bits*>(all.own)[at] : row<bits>(all, source)[at],
           source == 0);
    static_cast<bits*>(all.result)[at] = Element::store(Operation::end(total, all.size));
  }

  // A pack of one contribution. Where `Aligned` there is no branch, so that loads of two sources are on their
  // way at a time.
  template <bool Aligned>
  static __device__ pack<Aligned> contribution(const reduction_arguments& all, int source, u64 at) {
    if constexpr (Aligned) {
      const auto* from = row<pack<true>>(all, source);
      return (source == all.rank ? static_cast<const pack<true>*>(all.own) : from)[at];
    } else {
      if (source == all.rank) return static_cast<const pack<false>*>(all.own)[at];
      pack<false> next;
      const pack<true> whole = row<pack<true>>(all, source)[at];
      for (int lane = 0; lane < lanes; ++lane) next.at[lane] = whole.at[lane];
      return next;
    }
  }

  // `Depth` packs, `step` apart. `Aligned`: the user's buffers, as the rows always are.
  template <bool Aligned, int Depth>
  static __device__ void packs(const reduction_arguments& all, u64 at, u64 step) {
    value totals[Depth][lanes] = {};
#pragma unroll 2
    for (int source = 0; source < all.size; ++source) {
      pack<Aligned> next[Depth];
#pragma unroll
      for (int i = 0; i < Depth; ++i) next[i] = contribution<Aligned>(all, source, at + i * step);
#pragma unroll
      for (int i = 0; i < Depth; ++i)
        for (int lane = 0; lane < lanes; ++lane) join(totals[i][lane], next[i].at[lane], source == 0);
    }
#pragma unroll
    for (int i = 0; i < Depth; ++i) {
      pack<Aligned> done;
      for (int lane = 0; lane < lanes; ++lane)
        done.at[lane] = Element::store(Operation::end(totals[i][lane], all.size));
      static_cast<pack<Aligned>*>(all.result)[at + i * step] = done;
    }
  }

  template <bool Aligned>
  static __device__ void elements(const reduction_arguments& all) {
    constexpr int depth = 2;  // of 1, 2 and 4 the fastest with few blocks and with many
    const u64 count = all.count / lanes, step = static_cast<u64>(gridDim.x) * blockDim.x;
    const u64 own = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    u64 at = own;
    for (; at + (depth - 1) * step < count; at += depth * step) packs<Aligned, depth>(all, at, step);
    for (; at < count; at += step) packs<Aligned, 1>(all, at, step);
    if (own < all.count % lanes)
      one(all, count * lanes + own);  // a block has more threads than a pack has lanes
  }

  static __device__ void run(const reduction_arguments& all) {
    if ((reinterpret_cast<u64>(all.own) | reinterpret_cast<u64>(all.result)) % 16 == 0)
      elements<true>(all);
    else
      elements<false>(all);
  }
};

}  // namespace isthmus::copy_engine

extern "C" __global__ void __launch_bounds__(isthmus::copy_engine::block_threads)
    isthmus_combine(const isthmus::copy_engine::reduction_arguments all) {
  using namespace isthmus::copy_engine;
  combination<element::ISTHMUS_ELEMENT, operation::ISTHMUS_OPERATION>::run(all);
}
