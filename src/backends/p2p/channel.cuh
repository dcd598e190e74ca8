// A thread block's view of one lane of the channels to and from a peer.
//
// Packets: every 8 bytes are sent as data word, flag, data word, flag. Each pair is one 64-bit half of a 16-byte store
//   and becomes visible atomically. The flag is the number of the step, so nothing has to be cleared. A thread
//   communicates only with the thread that has the same index on the peer.
// Chunks: the block stores a chunk into the ring of the peer, and then its number. They use the full bandwidth of the
//   links, but each chunk costs a fence.
//
// Flow control: a sender may use an entry of a ring again after the receiver has acknowledged it. The acknowledgement
//   is stored after the loads of the entry have returned their values, because all threads of the block have tested
//   or stored these values. A store cannot overtake a load whose value has been used.
#pragma once

#include <type_traits>

#include "backends/p2p/bytes.cuh"
#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {

struct lane_view {
  const channel_arguments& args;
  int peer;  // the peer-th rank after this one, cyclically
  int lane;

  // Index of this lane in the rows of the owner: `ahead` ranks before the other rank.
  __device__ std::size_t index(int ahead) const {
    return static_cast<std::size_t>(ahead - 1) * max_lanes(args.size) + lane;
  }
  // The counters of this rank, and those of the peer for the same lane.
  __device__ lane_counters* own_counters(ring kind) const {
    return reinterpret_cast<lane_counters*>(args.scratch[0] + counters_offset) + index(peer) * ring_count +
           kind;
  }
  __device__ lane_counters* peer_counters(ring kind) const {
    return reinterpret_cast<lane_counters*>(args.scratch[peer] + counters_offset) +
           index(args.size - peer) * ring_count + kind;
  }
  // The entry of step `step` in the ring of packets from the peer (incoming) and to the peer (outgoing).
  __device__ const uint4* incoming_packets(std::uint32_t step) const {
    return reinterpret_cast<const uint4*>(args.scratch[0] + packets_offset) +
           (index(peer) * packet_depth + step % packet_depth) * packet_vectors;
  }
  __device__ uint4* outgoing_packets(std::uint32_t step) const {
    return reinterpret_cast<uint4*>(args.scratch[peer] + packets_offset) +
           (index(args.size - peer) * packet_depth + step % packet_depth) * packet_vectors;
  }
  __device__ const uint4* incoming_chunk(std::uint32_t step) const {
    return reinterpret_cast<const uint4*>(args.scratch[0] + chunks_offset) +
           (index(peer) * chunk_depth + step % chunk_depth) * chunk_vectors;
  }
  __device__ uint4* outgoing_chunk(std::uint32_t step) const {
    return reinterpret_cast<uint4*>(args.scratch[peer] + chunks_offset) +
           (index(args.size - peer) * chunk_depth + step % chunk_depth) * chunk_vectors;
  }
  __device__ lane_counters load_counters(ring kind) const {
    const uint4 v = load_remote(reinterpret_cast<const uint4*>(own_counters(kind)));
    return {v.x, v.y, v.z, v.w};
  }
};

// Waits until `word` has reached `number`, modulo 2^32. Returns false if the wait expired.
__device__ inline bool wait_for_number(const std::uint32_t* word, std::uint32_t number, spin_limit& limit) {
  while (static_cast<std::int32_t>(load_flag(word) - number) < 0)
    if (limit.is_exhausted()) return false;
  return true;
}

// Number of steps in which `lane` has data, if it handles `rows_per_step` rows in a step.
__device__ inline std::uint32_t steps_of(const message& each, int lane, int rows_per_step) {
  if (lane >= each.shape.lanes) return 0;
  const std::uint32_t row_bytes = each.shape.row_bytes();
  // The common case needs no division.
  const std::uint64_t bytes_per_step = std::uint64_t(row_bytes) * each.shape.lanes * rows_per_step;
  if (each.bytes <= bytes_per_step) return 1;
  const std::uint64_t first = std::uint64_t(row_bytes) * lane;
  return static_cast<std::uint32_t>((each.bytes - first + bytes_per_step - 1) / bytes_per_step);
}

// The groups of one message that a thread accesses in one step: `count` groups of 4 * Words bytes, the first at index
// `first`, the others at distance `stride`.
template <int Words>
struct thread_groups {
  const message& content;
  std::uint64_t first;
  std::uint32_t stride;
  int count;

  // At most Batch groups.
  template <int Batch>
  __device__ thread_groups(const message& content, std::uint64_t first, std::uint32_t stride,
                           std::integral_constant<int, Batch> /*batch*/, int limit = Batch)
      : content(content), first(first), stride(stride), count(0) {
    constexpr int width = 4 * Words;
    const std::uint64_t groups = (content.bytes + width - 1) / width;
    const std::uint64_t left = first < groups ? groups - first : 0;
#pragma unroll
    for (int i = 0; i < Batch; ++i)  // no division
      if (i < limit && std::uint64_t(i) * stride < left) count = i + 1;
  }
  __device__ std::uint64_t index(int i) const { return first + std::uint64_t(i) * stride; }
  // True if the groups are aligned and inside the buffer, so that they can be accessed at once.
  __device__ bool are_whole() const {
    return reinterpret_cast<std::uintptr_t>(content.buffer) % (4 * Words) == 0 &&
           (index(count - 1) + 1) * (4 * Words) <= content.bytes;
  }
  __device__ word_group<Words>* whole(int i) const {
    return reinterpret_cast<word_group<Words>*>(content.buffer) + index(i);
  }
  __device__ word_group<Words> load(int i) const {
    return load_group<Words>(content.buffer, index(i), content.bytes);
  }
  __device__ void store(int i, word_group<Words> group) const {
    store_group<Words>(content.buffer, index(i), content.bytes, group);
  }
};

// One direction of a message that is sent as packets.
struct packet_stream {
  const lane_view& view;
  const message& content;
  std::uint32_t first;  // steps that earlier messages have used
  std::uint32_t steps;

  __device__ packet_stream(const lane_view& view, const message& content, std::uint32_t first)
      : view(view), content(content), first(first), steps(steps_of(content, view.lane, packet_batch)) {}
  // The groups of this thread in a step. Each of them is a packet.
  __device__ thread_groups<2> groups(std::uint32_t step) const {
    const std::uint32_t stride = std::uint32_t(content.shape.lanes) * content.shape.threads;
    const std::uint64_t start = std::uint64_t(step) * packet_batch * stride + view.lane * content.shape.threads;
    const bool has_data = threadIdx.x < content.shape.threads;
    return {content, has_data ? start + threadIdx.x : content.bytes, stride,
            std::integral_constant<int, packet_batch>()};
  }

  // Waits until the entry of a step is free. `acknowledged`: the number that the caller has loaded. Returns false if
  // the wait expired.
  __device__ bool reserve(std::uint32_t step, std::uint32_t acknowledged, spin_limit& limit) const {
    const std::uint32_t number = first + step + 1;
    return static_cast<std::int32_t>(number - acknowledged) <= packet_depth ||
           wait_for_number(&view.own_counters(packet_ring)->acknowledged, number - packet_depth, limit);
  }
  __device__ void send_packet(std::uint32_t step, int i, word_group<2> data) const {
    const std::uint32_t number = first + step + 1;
    store_remote(view.outgoing_packets(number) + i * lane_threads + threadIdx.x,
                 make_uint4(data.words[0], number, data.words[1], number));
  }
  // Sends one step. The loads overlap with the wait.
  __device__ void send(std::uint32_t step, std::uint32_t acknowledged, spin_limit& limit) const {
    const thread_groups<2> own = groups(step);
    if (own.count == 0) return;
    if (!own.are_whole()) {
      if (!reserve(step, acknowledged, limit)) return;
#pragma unroll 1
      for (int i = 0; i < own.count; ++i) send_packet(step, i, own.load(i));
      return;
    }
    word_group<2> data[packet_batch];
#pragma unroll
    for (int i = 0; i < packet_batch; ++i)
      if (i < own.count) data[i] = *own.whole(i);
    if (!reserve(step, acknowledged, limit)) return;
#pragma unroll
    for (int i = 0; i < packet_batch; ++i)
      if (i < own.count) send_packet(step, i, data[i]);
  }

  // Starts to load a packet of a step.
  __device__ uint4 begin_receive(std::uint32_t step, int i) const {
    return load_remote(view.incoming_packets(first + step + 1) + i * lane_threads + threadIdx.x);
  }
  // Completes a load of begin_receive. Returns false if the wait expired.
  __device__ bool complete_receive(std::uint32_t step, int i, uint4& packet, spin_limit& limit) const {
    const std::uint32_t number = first + step + 1;
    while (packet.y != number || packet.w != number) {
      if (limit.is_exhausted()) return false;
      packet = begin_receive(step, i);
    }
    return true;
  }
};

}  // namespace isthmus::p2p
