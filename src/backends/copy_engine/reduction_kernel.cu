// Combines what the ranks sent to this one: result[i] = contribution 0 [i], ..., contribution size-1 [i], in
// rank order, so that the result does not depend on what arrived first. Compiled while the program runs, by
// NVRTC or HIPRTC, for one datatype and one operation of THE TABLE at a time:
//   ISTHMUS_ELEMENT    a name of namespace `element`
//   ISTHMUS_OPERATION  a name of namespace `operation`
// There is no standard library here.
#include "backends/copy_engine/reduction_arguments.hpp"
#include "device/formats.cuh"

namespace isthmus::copy_engine {

using u64 = unsigned long long;

// ---- elements: `bits` as they lie in memory, `value` as they are combined --------------------------------

template <typename Type>
struct plain {
  using bits = Type;
  using value = Type;
  static __device__ value load(bits raw) { return raw; }
  static __device__ bits store(value exact) { return exact; }
};

namespace element {

struct int8 : plain<signed char> {};
struct int16 : plain<short> {};
struct int32 : plain<int> {};
struct int64 : plain<long long> {};
struct uint8 : plain<unsigned char> {};
struct uint16 : plain<unsigned short> {};
struct uint32 : plain<unsigned int> {};
struct uint64 : plain<u64> {};
struct float32 : plain<float> {};
struct float64 : plain<double> {};
using device_formats::bfloat16;
using device_formats::float16;
using device_formats::float8_e4m3;
using device_formats::float8_e5m2;

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
