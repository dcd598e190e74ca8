// A thread block's view of its inbox slot, and the bounded wait that all kernels share.
#pragma once

#include "backends/p2p/kernels.hpp"
#include "backends/p2p/wire.cuh"

namespace isthmus::p2p {

// Bound of a spin loop: checks the clock and the host's flags every 65,536 iterations. After one kernel has
// timed out, the kernels queued after it do not wait for the timeout again.
struct spin_limit {
  host_flags* flags;
  std::uint64_t timeout_ns;
  std::uint64_t deadline = 0;
  std::uint32_t spins = 0;
  bool has_expired = false;
  int awaited_rank = -1;  // -1: several

  template <typename Arguments>
  __device__ explicit spin_limit(const Arguments& args, int awaited = -1)
      : flags(args.flags), timeout_ns(args.timeout_ns), awaited_rank(awaited) {}

  __device__ bool is_exhausted() {
    if (has_expired) return true;
    if (++spins & 0xffffu) return false;
    const std::uint64_t now = now_ns();
    if (deadline == 0) deadline = now + timeout_ns;
    if (flags->abort == 0 && flags->expired == 0 && now < deadline) return false;
    if (flags->abort == 0 && flags->expired == 0) {
      flags->awaited = static_cast<std::uint32_t>(awaited_rank + 1);
      flags->expired = 1;
    }
    has_expired = true;
    return true;
  }
};

// A fence in every fence_period steps lets a kernel of many steps reuse the generations of the inbox:
// docs/internals/p2p.md. Blocks execute it in different steps, because a fence waits for all traffic on the links.
constexpr std::uint32_t fence_period = depth - 4;
__device__ inline void fence_between_steps(std::uint32_t step, std::uint32_t steps) {
  if (steps > depth - 2 && step > 0 && (step + blockIdx.x) % fence_period == 0) __threadfence_system();
}

// Number of ranks: N, or if N is 0, the number in the arguments.
template <int N, typename Arguments>
__device__ inline int ranks(const Arguments& args) {
  return N ? N : args.size;
}
// Loops over the ranks are unrolled only if their number is known at compile time. Unrolled for 16 ranks, the kernels
// for any number of ranks took most of the time of nvcc.
template <int N>
constexpr int rank_unroll = N ? N : 1;

// Returns the i-th rank after this one, cyclically.
template <int N, typename Arguments>
__device__ inline int rank_after(const Arguments& args, int i) {
  const int next = args.rank + i;
  return next >= ranks<N>(args) ? next - ranks<N>(args) : next;
}

__device__ inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// Set in the step of a slot after a wait for its inbox has expired. Later kernels then do nothing in this slot: a rank
// that is late may still read the generations of the call that failed.
constexpr std::uint32_t failed_step = 0x80000000u;
__device__ inline bool has_failed(std::uint32_t step) { return (step & failed_step) != 0; }

// A slot in the inbox of every rank, by default that of this block.
struct inbox_slot {
  const kernel_arguments& args;
  std::size_t stride;  // vectors of one generation
  unsigned index;

  __device__ explicit inbox_slot(const kernel_arguments& args) : inbox_slot(args, blockIdx.x) {}
  __device__ inbox_slot(const kernel_arguments& args, unsigned index)
      : args(args), stride(std::size_t(2) * args.size * slot_vectors), index(index) {}

  __device__ std::uint32_t* step() const {
    return &reinterpret_cast<scratch_header*>(args.scratch[0])->step[index];
  }
  // Called by one thread at the end of a kernel, when all threads have read the step.
  __device__ void set_step(std::uint32_t next, bool has_expired) const {
    *step() = has_expired ? next | failed_step : next & ~failed_step;
  }
  __device__ std::uint32_t* zero_copy_count() const {
    return &reinterpret_cast<scratch_header*>(args.scratch[0])->zero_copy_count[index];
  }
  // The completion number that rank `writer` writes, in the scratch of the i-th next rank (0: this one).
  __device__ std::uint32_t* done(int i, int writer) const {
    return &reinterpret_cast<scratch_header*>(args.scratch[i])->done[index][writer];
  }
  // Row `row` of the inbox of the i-th next rank (0: this one), in the generation of `step`.
  __device__ uint4* row(int i, std::uint32_t step, int row) const {
    auto* inbox = reinterpret_cast<uint4*>(args.scratch[i] + inbox_offset);
    return inbox + (std::size_t(index) * depth + step % depth) * stride + std::size_t(row) * slot_vectors;
  }
};

// Sends `v` to vector `k` of row `row` on every other rank, starting with the next rank.
template <int N>
__device__ inline void send_to_all(const inbox_slot& slot, std::uint32_t step, int row, int k, uint4 v) {
#pragma unroll rank_unroll < N>
  for (int i = 1; i < ranks<N>(slot.args); ++i) store_remote(slot.row(i, step, row) + k, v);
}

// Adds `own` and the vectors `k` of the other ranks in rank order, and clears the vectors for a later
// generation. The loads of all ranks (N = 0: of four ranks) are in flight at the same time. Returns false if the wait
// expired. In this case there is no sum and nothing may be stored, so a call changes no buffer unless all ranks join it.
template <typename Wire, int N>
__device__ inline bool receive_and_add(const inbox_slot& slot, std::uint32_t step, int k, uint4 own,
                                       spin_limit& limit, uint4& result) {
  constexpr int group = N ? N : 4;
  const kernel_arguments& args = slot.args;
  uint4* inbox = slot.row(0, step, 0) + k;
  accumulator<Wire> sum;
#pragma unroll rank_unroll < N>
  for (int first = 0; first < ranks<N>(args); first += group) {
    uint4 v[group];
    bool is_missing = true;
    while (is_missing) {
      is_missing = false;
#pragma unroll
      for (int i = 0; i < group; ++i)
        if (N || first + i < args.size)
          v[i] = first + i == args.rank ? own : load_remote(inbox + (first + i) * slot_vectors);
#pragma unroll
      for (int i = 0; i < group; ++i)
        if (N || first + i < args.size) is_missing |= is_pending(v[i]);
      if (is_missing && limit.is_exhausted()) return false;
    }
    if (first == 0) sum.set(v[0]);
#pragma unroll
    for (int i = 0; i < group; ++i)
      if ((first != 0 || i != 0) && (N || first + i < args.size)) sum.add(v[i]);
  }
#pragma unroll rank_unroll < N>
  for (int r = 0; r < ranks<N>(args); ++r)
    if (r != args.rank) store_remote(inbox + r * slot_vectors, pending_vector());
  result = sum.template result<N>(args.divisor);
  return true;
}

}  // namespace isthmus::p2p
