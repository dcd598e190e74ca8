// Host interface of the peer-memory kernels: the layout of the shared scratch memory, and the launch functions.
//
// Scratch: Every rank owns one block of device memory that all ranks can write. It is divided into slots,
//   one per thread block of a launch. A slot holds `depth` generations of an inbox, and consecutive steps
//   use consecutive generations.
//
// Reuse without acknowledgements: In a reduction, every rank receives data from every other rank, directly or
//   through a third rank. When a reduction is complete on one rank, the previous one is complete on all ranks,
//   and its generations are free. docs/internals/p2p.md shows why `depth` generations are enough within a
//   kernel of many steps. Allgather and broadcast use a packet inbox with its own step counter. The root of a
//   broadcast does not wait, so the next packet kernel first receives a packet from every rank before it sends
//   (docs/internals/p2p.md). This makes back-to-back calls safe even if ranks are skewed.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

constexpr int max_ranks = 16;
constexpr int max_slots = 132;       // thread blocks of one launch
constexpr int depth = 8;             // generations of an inbox
constexpr int slot_vectors = 1024;   // 16-byte vectors from one rank in one generation of one slot
constexpr int packet_vectors = 512;  // the same for the packet inbox, which has packet_depth generations
constexpr int packet_depth = 2;

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
  std::uint32_t step[max_slots];         // the next step of each slot's inbox
  std::uint32_t packet_step[max_slots];  // the same for the packet inbox; starts at 1
  // 1: the slot's last packet kernel did not wait for a packet from every rank, so the next kernel does.
  std::uint32_t packet_needs_drain[max_slots];
  // Number of kernels of a slot that stored directly into peer buffers. `step` cannot be used instead, because
  // other kernels also increment it. A flag that lags by more than half of its range would appear to be ahead.
  std::uint32_t zero_copy_count[max_slots];
  // [slot][r]: written by rank r only. The number of such kernels whose results are complete in
  // this rank's buffer.
  std::uint32_t done[max_slots][max_ranks];
};

// Layout:
//   header
//   inbox [slot][depth][2 * size][slot_vectors]; the first `size` rows receive inputs, the others results
//   packet inbox [slot][packet_depth][size][packet_vectors]
constexpr std::size_t inbox_offset = 16384;
static_assert(sizeof(scratch_header) <= inbox_offset);
constexpr std::size_t inbox_bytes(int size) {
  return std::size_t(max_slots) * depth * 2 * size * slot_vectors * 16;
}
constexpr std::size_t packet_offset(int size) { return inbox_offset + inbox_bytes(size); }
constexpr std::size_t scratch_bytes(int size) {
  return packet_offset(size) + std::size_t(max_slots) * packet_depth * size * packet_vectors * 16;
}

// Words in pinned host memory: the host requests an abort, and kernels report a timeout.
struct host_flags {
  volatile std::uint32_t abort;    // set by the host
  volatile std::uint32_t expired;  // set by a kernel that waited longer than the timeout
};

struct kernel_arguments {
  const void* send_buf;  // NULL: this rank contributes zeros (allreduce and reduce_scatter)
  void* recv_buf;
  std::uint64_t count;  // as in the collective table; bytes for allgather and broadcast
  int rank, size, root;
  int slots, threads;               // launch shape, equal on all ranks
  float divisor;                    // 1, or the number of ranks for avg
  std::byte* scratch[max_ranks];    // [i]: scratch of rank (rank + i) % size, as mapped on this device
  void* peer_recv_bufs[max_ranks];  // two_shot_zero_copy: the recv_buf of rank (rank + i) % size
  host_flags* flags;
  std::uint64_t timeout_ns;
  bool can_start_early;  // supports_early_start()
};

// Launches with the shape in the arguments. Returns the result of this launch: the thread's last error
// may be older.
template <typename Kernel>
gpu_error gpu_launch(Kernel* kernel, const kernel_arguments& args, gpu_stream stream) {
  void* arguments[] = {const_cast<p2p::kernel_arguments*>(&args)};
  return gpu_launch_kernel(reinterpret_cast<const void*>(kernel), dim3(args.slots), dim3(args.threads),
                           arguments, stream, args.can_start_early);
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
// These move bytes unchanged. `count` is in bytes per rank, at most packet_limit_bytes.
gpu_error launch_allgather(kernel_arguments args, gpu_stream stream);
gpu_error launch_broadcast(kernel_arguments args, gpu_stream stream);
// Waits in all slots until every rank has started the last broadcast. After that, no rank writes to
// this rank's inbox.
gpu_error launch_drain(kernel_arguments args, gpu_stream stream);

// Loads all kernels that `size` ranks use onto the current device. Loading a kernel at its first launch can
// deadlock: it may wait for the device to become idle, and a kernel that runs there may wait for the
// kernel being loaded.
gpu_error load_reduction_kernels(int size);
gpu_error load_packet_kernels();
// Returns true if the kernels compiled for the current device can be launched before the previous kernel of the
// stream ends and wait for it themselves.
bool supports_early_start();

// The largest messages, in elements of the wire format per rank and in bytes.
constexpr std::uint64_t one_shot_limit_bytes = std::uint64_t(max_slots) * slot_vectors * 16;
constexpr std::uint64_t packet_limit_bytes = std::uint64_t(max_slots) * packet_vectors * 8;

}  // namespace isthmus::p2p
