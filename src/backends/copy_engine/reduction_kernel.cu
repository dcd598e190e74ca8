// Kernel that combines the contributions of all ranks element by element. It combines them in rank order, so
// the result does not depend on the order of arrival. NVRTC or HIPRTC compiles it at run time for one datatype
// and one operation of the collective table:
//   ISTHMUS_ELEMENT    a name of namespace `element`
//   ISTHMUS_OPERATION  a name of namespace `operation`
// No standard library is available.
#include "backends/copy_engine/reduction_arguments.hpp"
#include "device/elements.cuh"

namespace isthmus::copy_engine {

using namespace device_elements;
using u64 = unsigned long long;

template <typename Element, typename Operation>
struct combination {
  using bits = typename Element::bits;
  using value = typename Element::value;
  static constexpr int lanes = 16 / sizeof(bits);

  template <bool Aligned>
  struct alignas(Aligned ? 16 : sizeof(bits)) pack {
    bits values[lanes];
  };

  template <typename Unit>
  static __device__ const Unit* row(const reduction_arguments& arguments, int source) {
    const u64 offset = static_cast<u64>(source > arguments.rank ? source - 1 : source) * arguments.row_bytes;
    return reinterpret_cast<const Unit*>(static_cast<const char*>(arguments.peer_contributions) + offset);
  }

  static __device__ void combine(value& total, bits next, bool first) {
    const value operand = Element::load(next);
    total = first ? operand : Operation::combine(total, operand);
  }

  // Combines one element at the end that does not fill a pack.
  static __device__ void combine_element(const reduction_arguments& arguments, u64 index) {
    value total{};
    for (int source = 0; source < arguments.size; ++source)
      combine(total,
              source == arguments.rank ? static_cast<const bits*>(arguments.own)[index]
                                       : row<bits>(arguments, source)[index],
              source == 0);
    static_cast<bits*>(arguments.result)[index] = Element::store(Operation::finish(total, arguments.size));
  }

  // Loads a pack of one contribution. The aligned version has no branch, so the loads of two sources can be in
  // flight at the same time.
  template <bool Aligned>
  static __device__ pack<Aligned> contribution(const reduction_arguments& arguments, int source, u64 index) {
    if constexpr (Aligned) {
      const auto* from = row<pack<true>>(arguments, source);
      return (source == arguments.rank ? static_cast<const pack<true>*>(arguments.own) : from)[index];
    } else {
      if (source == arguments.rank) return static_cast<const pack<false>*>(arguments.own)[index];
      pack<false> next;
      const pack<true> aligned = row<pack<true>>(arguments, source)[index];
      for (int lane = 0; lane < lanes; ++lane) next.values[lane] = aligned.values[lane];
      return next;
    }
  }

  // Combines `Depth` packs at distance `step`. Aligned: the user buffers are aligned to packs (the
  // rows always are).
  template <bool Aligned, int Depth>
  static __device__ void combine_packs(const reduction_arguments& arguments, u64 index, u64 step) {
    value totals[Depth][lanes] = {};
#pragma unroll 2
    for (int source = 0; source < arguments.size; ++source) {
      pack<Aligned> next[Depth];
#pragma unroll
      for (int i = 0; i < Depth; ++i) next[i] = contribution<Aligned>(arguments, source, index + i * step);
#pragma unroll
      for (int i = 0; i < Depth; ++i)
        for (int lane = 0; lane < lanes; ++lane) combine(totals[i][lane], next[i].values[lane], source == 0);
    }
#pragma unroll
    for (int i = 0; i < Depth; ++i) {
      pack<Aligned> result;
      for (int lane = 0; lane < lanes; ++lane)
        result.values[lane] = Element::store(Operation::finish(totals[i][lane], arguments.size));
      static_cast<pack<Aligned>*>(arguments.result)[index + i * step] = result;
    }
  }

  template <bool Aligned>
  static __device__ void combine_all(const reduction_arguments& arguments) {
    constexpr int depth = 2;  // faster than 1 and 4, with few and with many blocks
    const u64 count = arguments.count / lanes, step = static_cast<u64>(gridDim.x) * blockDim.x;
    const u64 own = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    u64 index = own;
    for (; index + (depth - 1) * step < count; index += depth * step)
      combine_packs<Aligned, depth>(arguments, index, step);
    for (; index < count; index += step) combine_packs<Aligned, 1>(arguments, index, step);
    if (own < arguments.count % lanes)
      combine_element(arguments, count * lanes + own);  // more threads per block than lanes per pack
  }

  static __device__ void run(const reduction_arguments& arguments) {
    if ((reinterpret_cast<u64>(arguments.own) | reinterpret_cast<u64>(arguments.result)) % 16 == 0)
      combine_all<true>(arguments);
    else
      combine_all<false>(arguments);
  }
};

}  // namespace isthmus::copy_engine

extern "C" __global__ void __launch_bounds__(isthmus::copy_engine::block_threads)
    isthmus_combine(const isthmus::copy_engine::reduction_arguments arguments) {
  using namespace isthmus::copy_engine;
  combination<element::ISTHMUS_ELEMENT, operation::ISTHMUS_OPERATION>::run(arguments);
}
