// What the host side knows of the peer-memory kernels: the scratch that they share, and the launches.
//
// Scratch. Every rank owns one block of device memory that all ranks can write. It is divided into
// slots, one per thread block of a launch; a slot holds `depth` generations of an inbox. Consecutive
// steps of a slot use consecutive generations. In every reduction every rank hears from every other rank,
// directly or through a third, so when one is complete here, the one before it is complete everywhere: its
// generations are free. Within a kernel of many steps, docs/p2p_protocol.md shows why `depth` generations are
// enough. Allgather and broadcast have an inbox of packets with steps of their own; after a broadcast, whose
// root waits for nobody, the next of them hears from every rank before it sends (docs/p2p_packets.md). That is
// what makes back-to-back calls with skewed ranks safe without an acknowledgement.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

constexpr int max_ranks = 16;
constexpr int max_slots = 132;       // thread blocks of one launch
constexpr int depth = 8;             // generations of an inbox
constexpr int slot_vectors = 1024;   // 16-byte vectors from one rank in one generation of one slot
constexpr int packet_vectors = 512;  // the same for the packet inbox, which has packet_depth generations
constexpr int packet_depth = 2;

enum class element_type { float32, float16, bfloat16 };
enum class reduction_algorithm { one_shot, two_shot, two_shot_zero_copy };

// The first bytes of the scratch; only the owner touches them, but for `done`.
struct scratch_header {
  std::uint32_t step[max_slots];         // the next step of each slot's inbox
  std::uint32_t packet_step[max_slots];  // the same for the packet inbox; starts at 1
  // 1: the slot's last packet kernel ended without having heard from all ranks, which is left to the next one.
  std::uint32_t packet_needs_drain[max_slots];
  // Kernels of a slot so far that stored straight into the others' buffers. Not the step: other kernels count
  // that on, too, and a flag left behind by half of its range would look as if it were ahead.
  std::uint32_t zero_copy_count[max_slots];
  // [slot][r]: written by rank r alone, its number of such kernels whose results are all in this rank's buffer.
  std::uint32_t done[max_slots][max_ranks];
};

// Layout: control; inbox [slot][depth][2 * size][slot_vectors], of whose rows the first `size` receive
// inputs and the others results; packet inbox [slot][packet_depth][size][packet_vectors].
constexpr std::size_t inbox_offset = 16384;
static_assert(sizeof(scratch_header) <= inbox_offset);
constexpr std::size_t inbox_bytes(int size) {
  return std::size_t(max_slots) * depth * 2 * size * slot_vectors * 16;
}
constexpr std::size_t packet_offset(int size) { return inbox_offset + inbox_bytes(size); }
constexpr std::size_t scratch_bytes(int size) {
  return packet_offset(size) + std::size_t(max_slots) * packet_depth * size * packet_vectors * 16;
}

// Words in pinned host memory that tell the kernels to give up, and the host that they did.
struct host_flags {
  volatile std::uint32_t abort;    // set by the host
  volatile std::uint32_t expired;  // set by a kernel that waited longer than the timeout
};

struct kernel_arguments {
  const void* send_buf;  // NULL: this rank contributes zeros (allreduce and reduce_scatter)
  void* recv_buf;
  std::uint64_t count;  // as THE TABLE counts; bytes for the moving collectives
  int rank, size, root;
  int slots, threads;             // launch shape, equal on all ranks
  float divisor;                  // 1, or the number of ranks for avg
  std::byte* scratch[max_ranks];  // [i]: scratch of rank (rank + i) % size, as this device reaches it
  void* peer_recv_bufs[max_ranks];       // two_shot_zero_copy: the recv_buf of rank (rank + i) % size
  host_flags* flags;
  std::uint64_t timeout_ns;
  bool can_start_early;  // may_start_early()
};

// Launches with the call's own shape. Its own result, not the thread's last error: that may be an old one.
template <typename Kernel>
gpu_error gpu_launch(Kernel* kernel, const kernel_arguments& args, gpu_stream stream) {
  void* arguments[] = {const_cast<p2p::kernel_arguments*>(&args)};
  return gpu_launch_kernel(reinterpret_cast<const void*>(kernel), dim3(args.slots), dim3(args.threads),
                           arguments, stream, args.can_start_early);
}

// Each enqueues one collective on `stream` and sets the launch shape of `call` itself. Sums (or averages)
// are bit-identical on all ranks: contributions, each rounded to the wire type, the own one too, are
// added in float32 in rank order and the result is rounded once, to the wire type. `wire` is the
// buffers' own type, or bfloat16 for float32 buffers (not with two_shot_zero_copy).
gpu_error launch_allreduce(reduction_algorithm algorithm, element_type type, element_type wire, kernel_arguments args, gpu_stream stream);
gpu_error launch_reduce_scatter(element_type type, element_type wire, kernel_arguments args, gpu_stream stream);
// Move bytes unchanged; `count` is in bytes per rank, at most packet_limit.
gpu_error launch_allgather(kernel_arguments args, gpu_stream stream);
gpu_error launch_broadcast(kernel_arguments args, gpu_stream stream);
// Waits, in all slots, until every rank has begun the last broadcast: from then on nobody sends here.
gpu_error launch_drain(kernel_arguments args, gpu_stream stream);

// Load every kernel that `size` ranks use onto the current device. A kernel that is loaded at its first
// launch may have to wait for the device, and so for another rank's kernel that waits for it.
gpu_error load_reduction_kernels(int size);
gpu_error load_packet_kernels();
// Whether the kernels, as the current device runs them, wait by themselves for the one before on the stream.
bool may_start_early();

// The largest messages, in elements of the wire type per rank and in bytes.
constexpr std::uint64_t one_shot_limit_bytes = std::uint64_t(max_slots) * slot_vectors * 16;
constexpr std::uint64_t packet_limit_bytes = std::uint64_t(max_slots) * packet_vectors * 8;

}  // namespace isthmus::p2p
