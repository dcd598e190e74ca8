// Wire format: 16-byte vectors of four 32-bit words. The value of each word shows whether it has arrived. A
// word of all ones means "not yet arrived". It is a NaN in every type that is sent (float32, two float16 or two
// bfloat16), and the sender replaces it with another NaN. Data therefore needs no separate flag, no ordering
// between stores and no barrier. The only assumption is that 32-bit stores are atomic. The reader resets the
// words to "not yet arrived" before the buffer is used again.
#pragma once

#include "backends/p2p/instructions.cuh"
#include "device/formats.cuh"

namespace isthmus::p2p {

constexpr std::uint32_t pending_word = 0xffffffffu;
// One NaN in float32, a pair of NaNs in float16 and bfloat16.
constexpr std::uint32_t nan_word = 0x7fffffffu;

__device__ inline bool is_pending(uint4 v) {
  return v.x == pending_word || v.y == pending_word || v.z == pending_word || v.w == pending_word;
}

__device__ inline std::uint32_t escape_pending(std::uint32_t word) {
  return word == pending_word ? nan_word : word;
}

__device__ inline uint4 escape_pending(uint4 v) {
  return make_uint4(escape_pending(v.x), escape_pending(v.y), escape_pending(v.z), escape_pending(v.w));
}

__device__ inline uint4 pending_vector() {
  return make_uint4(pending_word, pending_word, pending_word, pending_word);
}

// Element types in memory. The vendors' types have different names in different versions.
struct float16 {
  static constexpr bool is_bfloat16 = false;
  device_formats::float16::bits bits;
};
struct bfloat16 {
  static constexpr bool is_bfloat16 = true;
  device_formats::bfloat16::bits bits;
};

// A 16-byte vector of `elements` elements of type Wire.
template <typename Wire>
struct wire_vector {
  static constexpr int elements = 16 / sizeof(Wire);
  union {
    uint4 bits;
    Wire lanes[elements];
  };
  __device__ wire_vector() {}
  __device__ explicit wire_vector(uint4 value) : bits(value) {}
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(float16 value) { return device_formats::float16::load(value.bits); }
__device__ inline float to_float(bfloat16 value) { return device_formats::bfloat16::load(value.bits); }

template <typename To>
__device__ To from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline float16 from_float<float16>(float value) {
  return {device_formats::float16::store(value)};
}
template <>
__device__ inline bfloat16 from_float<bfloat16>(float value) {
  return {device_formats::bfloat16::store(value)};
}

// The slow paths of load_elements and store_elements. They are not inlined, so they use no registers of
// the fast paths.
template <typename T, typename Wire>
__device__ __noinline__ uint4 load_elements_scalar(const T* source, std::uint64_t first, std::uint64_t count) {
  wire_vector<Wire> wire;
#pragma unroll
  for (int i = 0; i < wire_vector<Wire>::elements; ++i)
    wire.lanes[i] = from_float<Wire>(first + i < count ? to_float(source[first + i]) : 0.0f);
  return wire.bits;
}

template <typename T, typename Wire>
__device__ __noinline__ void store_elements_scalar(T* destination, std::uint64_t first, std::uint64_t count,
                                                   uint4 bits) {
  const wire_vector<Wire> wire(bits);
#pragma unroll
  for (int i = 0; i < wire_vector<Wire>::elements; ++i)
    if (first + i < count) destination[first + i] = from_float<T>(to_float(wire.lanes[i]));
}

// Loads the elements [index * n, index * n + n) of a user buffer as a wire vector, or stores them. Elements
// past `count` read as zero. has_vector_alignment: 16-byte accesses are possible. Conversion to a narrower type
// rounds to nearest even.
template <typename T, typename Wire>
__device__ inline uint4 load_elements(const T* source, std::uint64_t index, std::uint64_t count,
                                      bool has_vector_alignment) {
  constexpr int n = wire_vector<Wire>::elements, per_load = wire_vector<T>::elements;
  const std::uint64_t first = index * n;
  if (!has_vector_alignment || first + n > count)
    return escape_pending(load_elements_scalar<T, Wire>(source, first, count));
  const auto* vectors = reinterpret_cast<const uint4*>(source + first);
  if constexpr (sizeof(T) == sizeof(Wire)) {
    return escape_pending(*vectors);
  } else {
    wire_vector<Wire> wire;
    wire_vector<T> unpacked[n / per_load];
#pragma unroll
    for (int i = 0; i < n / per_load; ++i) unpacked[i].bits = vectors[i];
#pragma unroll
    for (int i = 0; i < n; ++i)
      wire.lanes[i] = from_float<Wire>(to_float(unpacked[i / per_load].lanes[i % per_load]));
    return escape_pending(wire.bits);
  }
}

template <typename T, typename Wire>
__device__ inline void store_elements(T* destination, std::uint64_t index, std::uint64_t count,
                                      bool has_vector_alignment, uint4 bits) {
  constexpr int n = wire_vector<Wire>::elements, per_store = wire_vector<T>::elements;
  const std::uint64_t first = index * n;
  if (!has_vector_alignment || first + n > count)
    return store_elements_scalar<T, Wire>(destination, first, count, bits);
  auto* vectors = reinterpret_cast<uint4*>(destination + first);
  if constexpr (sizeof(T) == sizeof(Wire)) {
    *vectors = bits;
  } else {
    const wire_vector<Wire> wire(bits);
#pragma unroll
    for (int i = 0; i < n / per_store; ++i) {
      wire_vector<T> unpacked;
#pragma unroll
      for (int k = 0; k < per_store; ++k)
        unpacked.lanes[k] = from_float<T>(to_float(wire.lanes[i * per_store + k]));
      vectors[i] = unpacked.bits;
    }
  }
}

// Adds contributions in float32, in call order, after set() with the first one. The result is rounded once.
template <typename Wire>
struct accumulator {
  static constexpr int n = wire_vector<Wire>::elements;
  float lanes[n];

  __device__ void set(uint4 first) {
    const wire_vector<Wire> v(first);
#pragma unroll
    for (int i = 0; i < n; ++i) lanes[i] = to_float(v.lanes[i]);
  }
  __device__ void add(uint4 bits) {
    const wire_vector<Wire> v(bits);
#pragma unroll
    for (int i = 0; i < n; ++i) lanes[i] += to_float(v.lanes[i]);
  }
  // `divisor` is 1, or the number of ranks for avg. N: the number of ranks, or 0 if it is not known at compile time. The
  // collective table requires a division; for a power of two, a product with the reciprocal has the same bits.
  template <int N>
  __device__ uint4 result(float divisor) const {
    static_assert((N & (N - 1)) == 0);
    wire_vector<Wire> v;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if constexpr (N != 0)
        v.lanes[i] = from_float<Wire>(lanes[i] * (divisor == 1.0f ? 1.0f : 1.0f / N));
      else
        v.lanes[i] = from_float<Wire>(divisor == 1.0f ? lanes[i] : lanes[i] / divisor);
    }
    return escape_pending(v.bits);
  }
};

}  // namespace isthmus::p2p
