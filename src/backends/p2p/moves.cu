// Allgather and broadcast of short messages by peer stores. Bytes must arrive unchanged, so no value can
// mean "not yet": every 8 bytes travel as data word, flag, data word, flag. Each pair is one 64-bit half
// of a 16-byte store and becomes visible at once; the flag is the step, so nothing has to be cleared.

#include <algorithm>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

struct packet_slot {
  const call& c;
  std::uint32_t step;

  __device__ explicit packet_slot(const call& call) : c(call), step(*counter()) {}
  __device__ std::uint32_t* counter() const {
    return &reinterpret_cast<control*>(c.scratch[0])->packet_step[blockIdx.x];
  }
  // Row of rank `from` in the packet inbox of the i-th next rank.
  __device__ uint4* row(int i, int from) const {
    auto* inbox = reinterpret_cast<uint4*>(c.scratch[i] + packet_offset(c.size));
    return inbox +
           ((std::size_t(blockIdx.x) * packet_depth + step % packet_depth) * c.size + from) * packet_vectors;
  }
  __device__ void send_to_all(int k, uint2 data) const {
    for (int i = 1; i < c.size; ++i) store_remote(row(i, c.rank) + k, make_uint4(data.x, step, data.y, step));
  }
  __device__ uint2 receive(int from, int k, patience& patience) const {
    uint4 v = load_remote(row(0, from) + k);
    while ((v.y != step || v.w != step) && !patience.exhausted()) v = load_remote(row(0, from) + k);
    return make_uint2(v.x, v.z);
  }
  __device__ void finish() const {
    __syncthreads();  // every thread has read the step
    if (threadIdx.x == 0) *counter() = step + 1;
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

__global__ void __launch_bounds__(packet_vectors) allgather(const call c) {
  const packet_slot slot(c);
  patience patience(c);
  const std::uint64_t index = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index * 8 < c.count) {
    auto* out = static_cast<unsigned char*>(c.recv_buf);
    const uint2 own = load_bytes(c.send_buf, index, c.count);
    slot.send_to_all(threadIdx.x, own);
    store_bytes(out + c.rank * c.count, index, c.count, own);
    for (int i = 1; i < c.size; ++i) {
      const int from = rank_after<0>(c, i);
      store_bytes(out + from * c.count, index, c.count, slot.receive(from, threadIdx.x, patience));
    }
  }
  slot.finish();
}

// The other ranks send a packet without data, in every slot: the scratch relies on everyone having heard
// from everyone before a kernel ends (kernels.hpp).
__global__ void __launch_bounds__(packet_vectors) broadcast(const call c) {
  const packet_slot slot(c);
  patience patience(c);
  const std::uint64_t index = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool inside = index * 8 < c.count;
  if (c.rank == c.root && inside) {
    const uint2 own = load_bytes(c.send_buf, index, c.count);
    slot.send_to_all(threadIdx.x, own);
    store_bytes(c.recv_buf, index, c.count, own);
  } else if (c.rank != c.root && threadIdx.x == 0) {
    slot.send_to_all(0, make_uint2(0, 0));
  }
  if (c.rank != c.root && inside)
    store_bytes(c.recv_buf, index, c.count, slot.receive(c.root, threadIdx.x, patience));
  if (threadIdx.x == 0)
    for (int from = 0; from < c.size; ++from)
      if (from != c.rank && from != c.root) slot.receive(from, 0, patience);
  slot.finish();
}

// One thread for every 8 bytes; blocks are small while there are few, to use more multiprocessors.
void set_shape(call& call) {
  const std::uint64_t packets = (call.count + 7) / 8;
  call.threads = packets <= 32 * 128 ? 128 : packets <= 64 * 256 ? 256 : packet_vectors;
  call.slots = static_cast<int>((packets + call.threads - 1) / call.threads);
}

}  // namespace

gpu_error launch_allgather(call call, gpu_stream stream) {
  set_shape(call);
  return gpu_launch(allgather, call, stream);
}

gpu_error launch_broadcast(call call, gpu_stream stream) {
  set_shape(call);
  return gpu_launch(broadcast, call, stream);
}

gpu_error load_moves() {
  const gpu_error code = gpu_load_kernel(allgather);
  return code == gpu_success ? gpu_load_kernel(broadcast) : code;
}

}  // namespace isthmus::p2p
