// Host interface of the peer-memory kernels: the layout of the shared scratch memory, and the launch functions.
//
// Scratch: Every rank owns one block of device memory that all ranks can write. It contains two parts:
//   - The inbox of the float reductions, divided into slots, one per thread block of a launch. A slot holds `depth`
//     generations, and consecutive steps use consecutive generations.
//   - Channels: one from each other rank, divided into lanes, one per thread block and peer. All other collectives
//     use them. A lane is a ring of packets and a ring of chunks.
//
// Reuse: In a float reduction, every rank receives data from every other rank, directly or through a third rank. When
//   a reduction is complete on one rank, the previous one is complete on all ranks, and its generations are free.
//   docs/internals/p2p.md shows why `depth` generations are enough within a kernel of many steps. The receiver
//   of a lane acknowledges what it has read, so lanes of different peers do not depend on each other.
//   Back-to-back calls are therefore safe even if ranks are skewed.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

constexpr int max_ranks = 16;
constexpr int combine_max_ranks = 8;  // of launch_combine
constexpr int max_slots = 132;        // thread blocks of one launch
constexpr int depth = 8;              // generations of an inbox
constexpr int slot_vectors = 1024;    // 16-byte vectors from one rank in one generation of one slot

// Rings of a lane. In a step, a thread sends up to packet_batch packets, or one chunk is sent by the block.
constexpr int lane_threads = 512;  // largest thread block
constexpr int packet_batch = 2;
constexpr int packet_depth = 4;  // steps in the ring of packets
constexpr int packet_vectors = lane_threads * packet_batch;
constexpr int chunk_batch = 4;  // 16-byte vectors of a thread in the largest chunk
constexpr int chunk_depth = 4;  // chunks in the ring of chunks
constexpr int chunk_vectors = lane_threads * chunk_batch;

// Lanes between two of `size` ranks. All thread blocks of a launch that wait for peers must be resident: at most
// total_lanes, two of which fit on a multiprocessor.
constexpr int total_lanes = 128;
constexpr int max_lanes(int size) { return total_lanes / std::max(1, size - 1); }
static_assert(max_lanes(max_ranks) > 0);

enum class element_type { float32, float16, bfloat16 };
// Returns nothing if the kernels do not reduce the datatype.
inline std::optional<element_type> element_of(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_FLOAT32: return element_type::float32;
    case ISTHMUS_FLOAT16: return element_type::float16;
    case ISTHMUS_BFLOAT16: return element_type::bfloat16;
    case ISTHMUS_INT8:
    case ISTHMUS_INT16:
    case ISTHMUS_INT32:
    case ISTHMUS_INT64:
    case ISTHMUS_UINT8:
    case ISTHMUS_UINT16:
    case ISTHMUS_UINT32:
    case ISTHMUS_UINT64:
    case ISTHMUS_FLOAT64:
    case ISTHMUS_FLOAT8_E4M3:
    case ISTHMUS_FLOAT8_E5M2:
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  return std::nullopt;
}

constexpr std::size_t element_bytes(element_type type) { return type == element_type::float32 ? 4 : 2; }

enum class reduction_algorithm { one_shot, two_shot, two_shot_zero_copy };

// The first bytes of the scratch. Only the owner accesses them, except for `done`.
struct scratch_header {
  std::uint32_t step[max_slots];  // the next step of each slot's inbox
  // Number of kernels of a slot that stored directly into peer buffers. `step` cannot be used instead, because
  // other kernels also increment it. A flag that lags by more than half of its range would appear to be ahead.
  std::uint32_t zero_copy_count[max_slots];
  // [slot][r]: written by rank r only. The number of such kernels whose results are complete in
  // this rank's buffer.
  std::uint32_t done[max_slots][max_ranks];
  std::byte barrier_out[16], barrier_in[max_ranks];  // the messages of a barrier
};

// Positions in one of the rings of a lane, modulo 2^32. Each rank has such counters for both directions of each lane.
struct alignas(16) lane_counters {
  std::uint32_t sent;          // steps that this rank has sent to the peer
  std::uint32_t acknowledged;  // of those, the steps that the peer has read; written by the peer
  std::uint32_t received;      // steps that this rank has read
  std::uint32_t arrived;       // chunks that the peer has sent completely; written by the peer
};
enum ring : int { packet_ring, chunk_ring, ring_count };

// Layout:
//   header
//   counters [size - 1][lane][ring_count]
//   packets [size - 1][lane][packet_depth][packet_vectors]
//   chunks [size - 1][lane][chunk_depth][chunk_vectors]
//   inbox [slot][depth][2 * size][slot_vectors]; the first `size` rows receive inputs, the others results
// Row i of counters, packets and chunks belongs to the (i + 1)-th rank after the owner, cyclically.
// The inbox is last because it is missing if the communicator accepts none of inbox_collectives.
constexpr std::size_t counters_offset = 16384;
static_assert(sizeof(scratch_header) <= counters_offset);
constexpr std::size_t packets_offset = counters_offset + total_lanes * ring_count * sizeof(lane_counters);
constexpr std::size_t chunks_offset =
    packets_offset + std::size_t(total_lanes) * packet_depth * packet_vectors * 16;
constexpr std::size_t inbox_offset =
    chunks_offset + std::size_t(total_lanes) * chunk_depth * chunk_vectors * 16;
constexpr std::size_t inbox_bytes(int size) {
  return std::size_t(max_slots) * depth * 2 * size * slot_vectors * 16;
}
// The collectives whose kernels use inboxes, as in isthmus_communicator_options.collectives.
constexpr std::uint32_t inbox_collectives =
    1u << ISTHMUS_ALLREDUCE | 1u << ISTHMUS_REDUCE_SCATTER | 1u << ISTHMUS_REDUCE;

// Words in pinned host memory: the host requests an abort, and kernels report a timeout.
struct host_flags {
  volatile std::uint32_t abort;    // set by the host
  volatile std::uint32_t expired;  // set by a kernel that waited longer than the timeout
  volatile std::uint32_t awaited;  // 1 + the rank that this kernel waited for; 0: several
};

struct kernel_arguments {
  const void* send_buf;  // NULL: this rank contributes zeros (allreduce and reduce_scatter)
  void* recv_buf;        // NULL: this rank receives no result (two_shot of allreduce.cu: reduce)
  std::uint64_t count;   // as in the collective table
  int rank, size;
  int slots, threads;               // launch shape, equal on all ranks
  float divisor;                    // 1, or the number of ranks for avg
  std::byte* scratch[max_ranks];    // [i]: scratch of rank (rank + i) % size, as mapped on this device
  void* peer_recv_bufs[max_ranks];  // two_shot_zero_copy: the recv_buf of rank (rank + i) % size
  host_flags* flags;
  std::uint64_t timeout_ns;
  bool can_start_early;  // supports_early_start()
};

// recv_buf receives the residual, and `count` is tokens * hidden.
struct rmsnorm_arguments : kernel_arguments {
  std::uint64_t tokens;
  std::uint32_t hidden;
  const void *residual, *weight;
  void* normalized;
  bool is_quantized;   // normalized is float8_e4m3
  const float* scale;  // of all rows; NULL: every row has its own
  float* scales;
  float eps;
  bool round_before_weight;
  int multiprocessors;  // of the smallest device
};

// recv_buf receives rows x columns elements: the sum over the ranks of alpha * A * B + bias.
struct product_arguments : kernel_arguments {
  std::uint32_t rows, columns, inner;
  const void *a, *b;  // B by columns
  std::uint64_t lda, ldb;
  const void* bias;  // of this rank, or NULL
  float alpha;
  int multiprocessors;  // of the smallest device
};
constexpr int product_max_rows = ISTHMUS_PRODUCT_MAX_ROWS;

// How a message is divided. It depends only on the message, so both ranks compute the same.
// Rows: with packets, `threads` packets of 8 bytes; with chunks, a chunk. Lane l sends the rows l, l + lanes, ...
struct lane_shape {
  std::uint16_t lanes = 0;  // 0: no message
  std::uint16_t threads = 0;
  std::uint16_t chunk_batch = 0;  // vectors of a thread in a chunk; 0: packets
  constexpr std::uint32_t row_bytes() const {
    return chunk_batch != 0 ? std::uint32_t(threads) * chunk_batch * 16 : std::uint32_t(threads) * 8;
  }
};

// Limits of lane_shape. They must be equal on all ranks.
constexpr int few_lanes = 64;          // of messages that do not fill all lanes with two large chunks
constexpr int min_message_lanes = 16;  // the rings then have memory for two messages of the default rule
struct lane_limits {
  int lanes;                   // at most max_lanes(size)
  std::uint64_t packet_bytes;  // the longest message that is sent as packets
  bool is_buffered = false;    // a message uses at most half of a ring, up to max_buffered_bytes
};
// A ring has memory for two messages of this length.
constexpr std::uint64_t max_buffered_packet_bytes(int lanes) {
  return std::uint64_t(lanes) * (packet_depth / 2) * packet_vectors * 8;
}
constexpr std::uint64_t max_buffered_bytes(int lanes) {
  return std::uint64_t(lanes) * (chunk_depth / 2) * chunk_vectors * 16;
}
// Limits of sends and receives.
constexpr lane_limits message_limits(int lanes, std::uint64_t packet_bytes) {
  return {lanes, std::min(packet_bytes, max_buffered_packet_bytes(lanes)), true};
}

constexpr lane_shape packet_shape(std::uint64_t bytes, const lane_limits& limits) {
  if (bytes == 0) return {};
  const std::uint64_t packets = (bytes + 7) / 8;
  // Short messages use small blocks to occupy more multiprocessors.
  int threads = packets <= 32 * 128 ? 128 : packets <= 64 * 256 ? 256 : lane_threads;
  const std::uint64_t packets_per_thread = std::uint64_t(limits.lanes) * packet_batch;
  while (limits.is_buffered && threads < lane_threads && packets > threads * packets_per_thread) threads *= 2;
  const std::uint64_t rows = (packets + threads - 1) / threads;
  return {static_cast<std::uint16_t>(std::min<std::uint64_t>(rows, limits.lanes)),
          static_cast<std::uint16_t>(threads), 0};
}
constexpr lane_shape shape_of(std::uint64_t bytes, const lane_limits& limits) {
  if (bytes <= limits.packet_bytes) return packet_shape(bytes, limits);
  // Two or more chunks for each lane, so that the copies at both ends overlap, unless they would be very short. Two H200
  // with 128 lanes: 8 MiB in chunks of 32 KiB took 36 us (64 lanes: 42 us), but 4 MiB in chunks of 16 KiB took 24.2 us
  // (64 lanes and chunks of 32 KiB: 23.2 us).
  constexpr std::uint64_t unit = std::uint64_t(lane_threads) * 16;
  const std::uint64_t units = (bytes + unit - 1) / unit, all_lanes = limits.lanes;
  const std::uint64_t lanes =
      units < 2 * all_lanes * chunk_batch ? std::min<std::uint64_t>(all_lanes, few_lanes) : all_lanes;
  const std::uint64_t rounding = limits.is_buffered ? 2 * lanes - 1 : 0;
  const std::uint64_t batch = std::clamp<std::uint64_t>((units + rounding) / (2 * lanes), 1, chunk_batch);
  const std::uint64_t chunks = (units + batch - 1) / batch;
  return {static_cast<std::uint16_t>(std::min(chunks, lanes)), lane_threads, static_cast<std::uint16_t>(batch)};
}

// A block of a buffer that this rank sends to a peer or receives from it.
struct message {
  std::byte* buffer = nullptr;
  std::uint64_t bytes = 0;
  lane_shape shape;
  constexpr bool is_in_packets() const { return shape.lanes != 0 && shape.chunk_batch == 0; }
  constexpr bool is_in_chunks() const { return shape.chunk_batch != 0; }
};

// Arguments of the kernels that use channels. Index i of the arrays: the i-th rank after this one, cyclically.
struct channel_arguments {
  // exchange: the messages to and from each peer; index 0 is copied from out to in.
  // combine: `out` has the contribution for the result of each rank; index 0 of `in` is this rank's result, and every
  //   rank sends as many bytes for it.
  message out[max_ranks], in[max_ranks];
  std::byte* scratch[max_ranks];
  host_flags* flags;
  std::uint64_t timeout_ns;
  int rank, size;
  isthmus_reduction_op op;  // combine
  int slots, threads;       // launch shape
  bool can_start_early;     // supports_early_start()
};

// Launches with the shape in the arguments. Returns the result of this launch: the thread's last error
// may be older.
template <typename Arguments>
gpu_error gpu_launch(void (*kernel)(Arguments), const Arguments& args, gpu_stream stream, int rows = 1,
                     unsigned memory_bytes = 0) {
  return gpu_launch_kernel(kernel, dim3(args.slots, rows), dim3(args.threads), args, stream,
                           args.can_start_early, memory_bytes);
}

// Each function sets the launch shape in its arguments and enqueues one collective on `stream`.
//
// Arithmetic: sums and averages are bit-identical on all ranks. Every contribution, including the rank's
// own, is rounded to the wire format. Contributions are added in float32 in rank order, and the result is
// rounded once to the wire format. `wire` is the type of the buffers, or bfloat16 for float32 buffers
// (not with two_shot_zero_copy).
gpu_error launch_allreduce(reduction_algorithm algorithm, element_type type, element_type wire,
                           kernel_arguments args, gpu_stream stream);
gpu_error launch_reduce_scatter(element_type type, element_type wire, kernel_arguments args, gpu_stream stream);
// Allreduce, residual addition and RMSNorm of rows (allreduce_rmsnorm.h). one_shot has no size limit here.
gpu_error launch_allreduce_rmsnorm(reduction_algorithm algorithm, element_type type, rmsnorm_arguments args,
                                   gpu_stream stream);
// A matrix product and the allreduce of the products, for float16 and bfloat16 and at most product_max_rows rows.
// Precondition: load_product_kernels succeeded on the devices of all ranks.
gpu_error launch_matmul_allreduce(element_type type, product_arguments args, gpu_stream stream);
// Moves bytes unchanged.
gpu_error launch_exchange(channel_arguments args, gpu_stream stream);
// Combines the contributions of all ranks in rank order, for every datatype and operation of the collective table.
gpu_error launch_combine(isthmus_datatype datatype, channel_arguments args, gpu_stream stream);
// Waits until all peers have acknowledged what this rank has sent. Then no rank writes to this rank's scratch.
gpu_error launch_drain(channel_arguments args, gpu_stream stream);

// Loads all kernels that `size` ranks use onto the current device. Loading a kernel at its first launch can
// deadlock: it may wait for the device to become idle, and a kernel that runs there may wait for the
// kernel being loaded.
gpu_error load_reduction_kernels(int size);
gpu_error load_rmsnorm_kernels(int size);
gpu_error load_product_kernels(int size);
gpu_error load_exchange_kernels();
gpu_error load_combine_kernels(int size);
// Returns true if the kernels compiled for the current device can be launched before the previous kernel of the
// stream ends and wait for it themselves.
bool supports_early_start();

// The largest message of one_shot, on the wire.
constexpr std::uint64_t one_shot_limit_bytes = std::uint64_t(max_slots) * slot_vectors * 16;

}  // namespace isthmus::p2p
