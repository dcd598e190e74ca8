// Allgather and broadcast of short messages by peer stores. Bytes must arrive unchanged, so no value can
// mean "not yet": every 8 bytes travel as data word, flag, data word, flag. Each pair is one 64-bit half
// of a 16-byte store and becomes visible at once; the flag is the step, so nothing has to be cleared.

#include <algorithm>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

struct packet_slot {
  const kernel_arguments& args;
  std::uint32_t step;
  bool needs_drain;  // the step before this one has yet to be heard from all ranks

  __device__ explicit packet_slot(const kernel_arguments& args)
      : args(args), step(header()->packet_step[blockIdx.x]), needs_drain(header()->packet_needs_drain[blockIdx.x] != 0) {}
  __device__ scratch_header* header() const { return reinterpret_cast<scratch_header*>(args.scratch[0]); }
  // Row of rank `from` in the generation of `step` at the i-th next rank.
  __device__ uint4* row(int i, std::uint32_t step, int from) const {
    auto* inbox = reinterpret_cast<uint4*>(args.scratch[i] + packet_offset(args.size));
    return inbox +
           ((std::size_t(blockIdx.x) * packet_depth + step % packet_depth) * args.size + from) * packet_vectors;
  }
  __device__ void send_to_all(int k, uint2 data) const {
    for (int i = 1; i < args.size; ++i)
      store_remote(row(i, step, args.rank) + k, make_uint4(data.x, step, data.y, step));
  }
  // False when patience ended first: then there is no data.
  __device__ bool receive(std::uint32_t step, int from, int k, spin_limit& limit, uint2& data) const {
    const uint4* const place = row(0, step, from) + k;
    uint4 v = load_remote(place);
    while (v.y != step || v.w != step) {
      if (limit.is_exhausted()) return false;
      v = load_remote(place);
    }
    data = make_uint2(v.x, v.z);
    return true;
  }
  // Before the block sends: waits until the step before this one has begun everywhere, where that is not known
  // yet. A thread for each rank looks at its packet 0, which all ranks send in every slot of every kernel.
  // False when patience ended first: then the generation is not free, and the block must not send.
  __device__ bool drain(spin_limit& limit) const {
    if (!needs_drain) return true;
    const int i = static_cast<int>(threadIdx.x) + 1;
    uint2 unused;
    if (i < args.size) receive(step - 1, rank_after<0>(args, i), 0, limit, unused);
    return __syncthreads_or(limit.has_expired) == 0;
  }
  __device__ void finish(bool has_all_packets) const {
    const bool leaves_undrained = __syncthreads_or(!has_all_packets) != 0;  // every thread has read the words
    if (threadIdx.x != 0) return;
    header()->packet_step[blockIdx.x] = step + 1;
    header()->packet_needs_drain[blockIdx.x] = leaves_undrained ? 1 : 0;
  }
};

// Eight bytes at `index` of a buffer of `bytes`; what lies past the end reads as zero and is not written.
__device__ inline uint2 load_bytes(const void* buffer, std::uint64_t index, std::uint64_t bytes) {
  const auto* from = static_cast<const unsigned char*>(buffer) + index * 8;
  if (index * 8 + 8 <= bytes && reinterpret_cast<std::uintptr_t>(from) % 8 == 0)
    return *reinterpret_cast<const uint2*>(from);
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    if (index * 8 + i < bytes) value |= std::uint64_t(from[i]) << (8 * i);
  return make_uint2(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
}

__device__ inline void store_bytes(void* buffer, std::uint64_t index, std::uint64_t bytes, uint2 data) {
  auto* to = static_cast<unsigned char*>(buffer) + index * 8;
  if (index * 8 + 8 <= bytes && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = data;
    return;
  }
  const std::uint64_t value = data.x | std::uint64_t(data.y) << 32;
  for (int i = 0; i < 8; ++i)
    if (index * 8 + i < bytes) to[i] = static_cast<unsigned char>(value >> (8 * i));
}

__global__ void __launch_bounds__(packet_vectors) allgather(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const packet_slot slot(args);
  spin_limit limit(args);
  const std::uint64_t index = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool is_inside = index * 8 < args.count;
  uint2 own;  // on its way while the block waits
  if (is_inside) own = load_bytes(args.send_buf, index, args.count);
  if (!slot.drain(limit)) return;
  if (is_inside) {
    auto* out = static_cast<unsigned char*>(args.recv_buf);
    slot.send_to_all(threadIdx.x, own);
    store_bytes(out + args.rank * args.count, index, args.count, own);
    for (int i = 1; i < args.size; ++i) {
      const int from = rank_after<0>(args, i);
      uint2 data;
      if (slot.receive(slot.step, from, threadIdx.x, limit, data))
        store_bytes(out + from * args.count, index, args.count, data);
    }
  }
  slot.finish(!limit.has_expired);
}

// The root waits for nobody, and the others for the root's data alone. Each of them sends a packet without data
// in every slot, which the next kernel waits for: a root is at most one broadcast ahead of a rank that is late.
__global__ void __launch_bounds__(packet_vectors) broadcast(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const packet_slot slot(args);
  spin_limit limit(args);
  const std::uint64_t index = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool is_inside = index * 8 < args.count;
  uint2 data;
  if (args.rank == args.root && is_inside) data = load_bytes(args.send_buf, index, args.count);
  if (!slot.drain(limit)) return;
  if (args.rank == args.root && is_inside) {
    slot.send_to_all(threadIdx.x, data);
    store_bytes(args.recv_buf, index, args.count, data);
  } else if (args.rank != args.root) {
    if (threadIdx.x == 0) slot.send_to_all(0, make_uint2(0, 0));
    if (is_inside && slot.receive(slot.step, args.root, threadIdx.x, limit, data))
      store_bytes(args.recv_buf, index, args.count, data);
  }
  slot.finish(false);
}

__global__ void drain(const kernel_arguments args) {
  wait_for_earlier_kernels();
  spin_limit limit(args);
  packet_slot(args).drain(limit);
}

// One thread for every 8 bytes; blocks are small while there are few, to use more multiprocessors.
void set_shape(kernel_arguments& args) {
  const std::uint64_t packets = (args.count + 7) / 8;
  args.threads = packets <= 32 * 128 ? 128 : packets <= 64 * 256 ? 256 : packet_vectors;
  args.slots = static_cast<int>((packets + args.threads - 1) / args.threads);
}

}  // namespace

gpu_error launch_allgather(kernel_arguments args, gpu_stream stream) {
  set_shape(args);
  return gpu_launch(allgather, args, stream);
}

gpu_error launch_broadcast(kernel_arguments args, gpu_stream stream) {
  set_shape(args);
  return gpu_launch(broadcast, args, stream);
}

gpu_error launch_drain(kernel_arguments args, gpu_stream stream) {
  args.slots = max_slots;
  args.threads = 32;
  static_assert(max_ranks <= 32);
  return gpu_launch(drain, args, stream);
}

gpu_error load_packet_kernels() {
  gpu_error code = gpu_load_kernel(allgather);
  if (code == gpu_success) code = gpu_load_kernel(broadcast);
  return code == gpu_success ? gpu_load_kernel(drain) : code;
}

bool may_start_early() { return gpu_may_start_early(allgather); }

}  // namespace isthmus::p2p
