// The kernel of all collectives that move data: each rank sends a message to some peers and receives a message from
// some. Block (x, y) handles lane x of the messages to and from the y-th rank after this one; y = 0 copies the rank's
// own block. Blocks of different peers do not depend on each other, and a block sends a step before it receives one.
// A thread loads the bytes that it sends before it stores the bytes that it receives at the same offset, so
// both messages may use the same buffer.

#include <algorithm>

#include "backends/p2p/channel.cuh"

namespace isthmus::p2p {
namespace {

// Copies this rank's own block.
__device__ void copy_own_block(const channel_arguments& args) {
  const message &from = args.out[0], &to = args.in[0];
  const std::uint64_t stride = std::uint64_t(gridDim.x) * blockDim.x;
  for (std::uint64_t i = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i * 16 < from.bytes; i += stride)
    store_group<4>(to.buffer, i, from.bytes, load_group<4>(from.buffer, i, from.bytes));
}

struct exchange_block {
  const lane_view& view;
  spin_limit& limit;

  // Returns false on all threads of the block if a wait of any thread expired.
  __device__ bool synchronize() const { return __syncthreads_or(limit.has_expired) == 0; }

  // Receives one step of packets.
  __device__ void receive_packets(const packet_stream& in, std::uint32_t step) const {
    const thread_groups<2> own = in.groups(step);
    if (own.count == 0) return;
    if (!own.are_whole()) {
#pragma unroll 1
      for (int i = 0; i < own.count; ++i) {
        uint4 packet = in.begin_receive(step, i);
        if (!in.complete_receive(step, i, packet, limit)) return;
        own.store(i, {{packet.x, packet.z}});
      }
      return;
    }
    uint4 packets[packet_batch];
#pragma unroll
    for (int i = 0; i < packet_batch; ++i)
      if (i < own.count) packets[i] = in.begin_receive(step, i);
#pragma unroll
    for (int i = 0; i < packet_batch; ++i) {
      if (i >= own.count || !in.complete_receive(step, i, packets[i], limit)) return;
      *own.whole(i) = {{packets[i].x, packets[i].z}};
    }
  }

  // The vectors of this thread in a chunk.
  __device__ thread_groups<4> vectors(const message& content, std::uint32_t step) const {
    const std::uint64_t chunk = std::uint64_t(step) * content.shape.lanes + view.lane;
    return {content, chunk * content.shape.chunk_batch * lane_threads + threadIdx.x, lane_threads,
            std::integral_constant<int, chunk_batch>(), content.shape.chunk_batch};
  }
  // Stores a chunk in the peer's ring. Precondition: the entry is free.
  __device__ void send_chunk(const message& out, std::uint32_t first, std::uint32_t step) const {
    const thread_groups<4> own = vectors(out, step);
    if (own.count == 0) return;
    uint4* const entry = view.outgoing_chunk(first + step + 1) + threadIdx.x;
    const auto send = [entry](int i, const word_group<4>& data) {
      store_remote(entry + i * lane_threads,
                   make_uint4(data.words[0], data.words[1], data.words[2], data.words[3]));
    };
    if (!own.are_whole()) {
#pragma unroll 1
      for (int i = 0; i < own.count; ++i) send(i, own.load(i));
      return;
    }
    word_group<4> data[chunk_batch];
#pragma unroll
    for (int i = 0; i < chunk_batch; ++i)
      if (i < own.count) data[i] = *own.whole(i);
#pragma unroll
    for (int i = 0; i < chunk_batch; ++i)
      if (i < own.count) send(i, data[i]);
  }
  // Copies a chunk from this rank's ring. Precondition: it has arrived.
  __device__ void receive_chunk(const message& in, std::uint32_t first, std::uint32_t step) const {
    const thread_groups<4> own = vectors(in, step);
    if (own.count == 0) return;
    const uint4* const entry = view.incoming_chunk(first + step + 1) + threadIdx.x;
    const auto receive = [entry](int i) {
      const uint4 v = load_remote(entry + i * lane_threads);
      return word_group<4>{{v.x, v.y, v.z, v.w}};
    };
    if (!own.are_whole()) {
#pragma unroll 1
      for (int i = 0; i < own.count; ++i) own.store(i, receive(i));
      return;
    }
    word_group<4> data[chunk_batch];
#pragma unroll
    for (int i = 0; i < chunk_batch; ++i)
      if (i < own.count) data[i] = receive(i);
#pragma unroll
    for (int i = 0; i < chunk_batch; ++i)
      if (i < own.count) *own.whole(i) = data[i];
  }
};

// A message without bytes takes no part.
__device__ void exchange_packets(const lane_view& view, const message& out, const message& in,
                                 spin_limit& limit) {
  const exchange_block block{view, limit};
  const lane_counters counters = view.load_counters(packet_ring);
  const packet_stream sending(view, out, counters.sent), receiving(view, in, counters.received);
  for (std::uint32_t step = 0; step < sending.steps || step < receiving.steps; ++step) {
    if (step < sending.steps) sending.send(step, counters.acknowledged, limit);
    if (step < receiving.steps) block.receive_packets(receiving, step);
    if (!block.synchronize()) return;
    if (step < receiving.steps && threadIdx.x == 0)
      store_word(&view.peer_counters(packet_ring)->acknowledged, receiving.first + step + 1);
  }
  if (threadIdx.x != 0) return;
  view.own_counters(packet_ring)->sent = sending.first + sending.steps;
  view.own_counters(packet_ring)->received = receiving.first + receiving.steps;
}

__device__ void exchange_chunks(const lane_view& view, const message& out, const message& in,
                                spin_limit& limit) {
  constexpr unsigned sender = 0, receiver = 32;  // threads that wait and signal; in different warps
  const exchange_block block{view, limit};
  const lane_counters counters = view.load_counters(chunk_ring);
  const std::uint32_t out_steps = steps_of(out, view.lane, 1), in_steps = steps_of(in, view.lane, 1);
  for (std::uint32_t step = 0; step < out_steps || step < in_steps; ++step) {
    if (step < out_steps) {
      const std::uint32_t number = counters.sent + step + 1;
      if (threadIdx.x == sender)
        wait_for_number(&view.own_counters(chunk_ring)->acknowledged, number - chunk_depth, limit);
      if (!block.synchronize()) return;
      block.send_chunk(out, counters.sent, step);
      __syncthreads();
      if (threadIdx.x == sender) store_flag(&view.peer_counters(chunk_ring)->arrived, number);
    }
    if (step < in_steps) {
      const std::uint32_t number = counters.received + step + 1;
      if (threadIdx.x == receiver) wait_for_number(&view.own_counters(chunk_ring)->arrived, number, limit);
      if (!block.synchronize()) return;
      block.receive_chunk(in, counters.received, step);
      __syncthreads();
      if (threadIdx.x == receiver) store_word(&view.peer_counters(chunk_ring)->acknowledged, number);
    }
  }
  if (threadIdx.x != 0) return;
  view.own_counters(chunk_ring)->sent = counters.sent + out_steps;
  view.own_counters(chunk_ring)->received = counters.received + in_steps;
}

__global__ void __launch_bounds__(lane_threads, 2)
    exchange(ISTHMUS_P2P_KERNEL_ARGUMENT const channel_arguments args) {
  wait_for_earlier_kernels();
  const int peer = static_cast<int>(blockIdx.y);
  if (peer == 0) return copy_own_block(args);
  const lane_view view{args, peer, static_cast<int>(blockIdx.x)};
  const message out = args.out[peer], in = args.in[peer];
  if (view.lane >= out.shape.lanes && view.lane >= in.shape.lanes) return;
  spin_limit limit(args, rank_after<0>(args, peer));
  if (out.is_in_packets() || in.is_in_packets())
    exchange_packets(view, out.is_in_packets() ? out : message{}, in.is_in_packets() ? in : message{}, limit);
  if (out.is_in_chunks() || in.is_in_chunks())
    exchange_chunks(view, out.is_in_chunks() ? out : message{}, in.is_in_chunks() ? in : message{}, limit);
}

// Waits until the peers have acknowledged everything: one block per lane and peer, one thread per ring.
__global__ void drain(ISTHMUS_P2P_KERNEL_ARGUMENT const channel_arguments args) {
  wait_for_earlier_kernels();
  const int peer = static_cast<int>(blockIdx.y) + 1, kind = static_cast<int>(threadIdx.x);
  if (kind >= ring_count) return;
  const lane_view view{args, peer, static_cast<int>(blockIdx.x)};
  spin_limit limit(args, rank_after<0>(args, peer));
  const lane_counters* const counters = view.own_counters(static_cast<ring>(kind));
  wait_for_number(&counters->acknowledged, counters->sent, limit);
}

}  // namespace

gpu_error launch_exchange(channel_arguments args, gpu_stream stream) {
  args.slots = args.threads = 1;
  for (int i = 0; i < args.size; ++i)
    for (const message& each : {args.out[i], args.in[i]}) {
      args.slots = std::max<int>(args.slots, each.shape.lanes);
      args.threads = std::max<int>(args.threads, each.shape.threads);
    }
  return gpu_launch(exchange, args, stream, args.size);
}

gpu_error launch_drain(channel_arguments args, gpu_stream stream) {
  args.slots = max_lanes(args.size);
  args.threads = 32;
  static_assert(ring_count <= 32);
  return gpu_launch(drain, args, stream, args.size - 1);
}

gpu_error load_exchange_kernels() {
  const gpu_error code = gpu_load_kernel(exchange);
  return code == gpu_success ? gpu_load_kernel(drain) : code;
}

bool supports_early_start() { return gpu_supports_early_start(exchange); }

}  // namespace isthmus::p2p
