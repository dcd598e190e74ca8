// Kernels for allgather and broadcast of short messages with peer stores. Bytes must arrive unchanged, so no
// data value can mean "not yet arrived". Instead, every 8 bytes are sent as data word, flag, data word, flag.
// Each pair is one 64-bit half of a 16-byte store and becomes visible atomically. The flag is the step, so
// nothing has to be cleared.

#include <algorithm>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

struct packet_slot {
  const kernel_arguments& args;
  std::uint32_t step;
  bool needs_drain;  // packets of the previous step have not yet arrived from all ranks

  __device__ explicit packet_slot(const kernel_arguments& args)
      : args(args),
        step(header()->packet_step[blockIdx.x]),
        needs_drain(header()->packet_needs_drain[blockIdx.x] != 0) {}
  __device__ scratch_header* header() const { return reinterpret_cast<scratch_header*>(args.scratch[0]); }
  // Returns the row of sender `source` in the inbox of the i-th next rank, in the generation of `step`.
  __device__ uint4* row(int i, std::uint32_t step, int source) const {
    auto* inbox = reinterpret_cast<uint4*>(args.scratch[i] + packet_offset(args.size));
    return inbox + ((std::size_t(blockIdx.x) * packet_depth + step % packet_depth) * args.size + source) *
                       packet_vectors;
  }
  __device__ void send_to_all(int k, uint2 data) const {
    for (int i = 1; i < args.size; ++i)
      store_remote(row(i, step, args.rank) + k, make_uint4(data.x, step, data.y, step));
  }
  // Returns false, without data, if the wait expired.
  __device__ bool receive(std::uint32_t step, int source, int k, spin_limit& limit, uint2& data) const {
    const uint4* const source_packet = row(0, step, source) + k;
    uint4 v = load_remote(source_packet);
    while (v.y != step || v.w != step) {
      if (limit.is_exhausted()) return false;
      v = load_remote(source_packet);
    }
    data = make_uint2(v.x, v.z);
    return true;
  }
  // Waits until all ranks have started the previous step, unless that is already known. One thread per rank
  // polls packet 0, which every rank sends in every slot of every kernel. Returns false if the wait expired:
  // the generation is not free, and the block must not send.
  __device__ bool drain(spin_limit& limit) const {
    if (!needs_drain) return true;
    const int i = static_cast<int>(threadIdx.x) + 1;
    uint2 unused;
    if (i < args.size) receive(step - 1, rank_after<0>(args, i), 0, limit, unused);
    return __syncthreads_or(limit.has_expired) == 0;
  }
  __device__ void finish(bool has_all_packets) const {
    const bool is_incomplete =
        __syncthreads_or(!has_all_packets) != 0;  // also: all threads must have read the header
    if (threadIdx.x != 0) return;
    header()->packet_step[blockIdx.x] = step + 1;
    header()->packet_needs_drain[blockIdx.x] = is_incomplete ? 1 : 0;
  }
};

// Loads or stores the `index`-th group of 8 bytes of a buffer with `bytes` bytes. Bytes past the end are read
// as zero and are not written.
__device__ inline uint2 load_bytes(const void* buffer, std::uint64_t index, std::uint64_t bytes) {
  const auto* source = static_cast<const unsigned char*>(buffer) + index * 8;
  if (index * 8 + 8 <= bytes && reinterpret_cast<std::uintptr_t>(source) % 8 == 0)
    return *reinterpret_cast<const uint2*>(source);
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    if (index * 8 + i < bytes) value |= std::uint64_t(source[i]) << (8 * i);
  return make_uint2(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
}

__device__ inline void store_bytes(void* buffer, std::uint64_t index, std::uint64_t bytes, uint2 data) {
  auto* destination = static_cast<unsigned char*>(buffer) + index * 8;
  if (index * 8 + 8 <= bytes && reinterpret_cast<std::uintptr_t>(destination) % 8 == 0) {
    *reinterpret_cast<uint2*>(destination) = data;
    return;
  }
  const std::uint64_t value = data.x | std::uint64_t(data.y) << 32;
  for (int i = 0; i < 8; ++i)
    if (index * 8 + i < bytes) destination[i] = static_cast<unsigned char>(value >> (8 * i));
}

__global__ void __launch_bounds__(packet_vectors) allgather(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const packet_slot slot(args);
  spin_limit limit(args);
  const std::uint64_t index = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool is_inside = index * 8 < args.count;
  uint2 own;  // loaded before the wait, so the load overlaps with it
  if (is_inside) own = load_bytes(args.send_buf, index, args.count);
  if (!slot.drain(limit)) return;
  if (is_inside) {
    auto* out = static_cast<unsigned char*>(args.recv_buf);
    slot.send_to_all(threadIdx.x, own);
    store_bytes(out + args.rank * args.count, index, args.count, own);
    for (int i = 1; i < args.size; ++i) {
      const int source = rank_after<0>(args, i);
      uint2 data;
      if (slot.receive(slot.step, source, threadIdx.x, limit, data))
        store_bytes(out + source * args.count, index, args.count, data);
    }
  }
  slot.finish(!limit.has_expired);
}

// The root does not wait, and the other ranks wait only for the root's data. Each of them sends an empty
// packet in every slot, and the next kernel waits for it. A root is therefore at most one broadcast ahead of
// the slowest rank.
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

// One thread per 8 bytes. Short messages use small blocks to occupy more multiprocessors.
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

bool supports_early_start() { return gpu_supports_early_start(allgather); }

}  // namespace isthmus::p2p
