// The shared segments of a communicator: their set-up, and the addresses of their parts.
#pragma once

#include <isthmus/backend.h>
#include <sys/types.h>

#include <memory>
#include <vector>

#include "backends/shm/peer_memory.hpp"
#include "backends/shm/segment_layout.hpp"
#include "kernels/kernels.hpp"
#include "memory/segment.hpp"

namespace isthmus::shm {

struct tuning_parameters {
  std::uint64_t spins;  // number of polls of a flag before the rank yields its core
  std::uint64_t
      streaming_bytes;          // operations that write more bytes, summed over all ranks, use streaming stores
  std::uint64_t address_bytes;  // longer messages are copied directly from the sender's buffer
};

struct segment_connection {
  std::vector<std::shared_ptr<shared_segment>> segments;  // by rank
  std::unique_ptr<write_gate> own_gate;
  std::vector<std::byte*> gate_addresses;  // by rank, in that rank's process
  geometry sizes;
  tuning_parameters parameters;
  bool can_kernel_copy = false;  // the kernel copies between all processes of the ranks
};

// Default limit for all segments of a communicator together, for up to 64 ranks. With more ranks the minimum
// sizes of cells and slot blocks may exceed it.
inline constexpr std::uint64_t max_segments_bytes = 64 << 20;
// Minimum size of one rank's block in a slot.
inline constexpr std::uint64_t min_slot_block_bytes = 16 * line_bytes;
geometry default_geometry(std::uint64_t ranks);

// Collective. Sets up the segments. If this is impossible on any rank, all ranks agree on the failure.
// Errors: UNSUPPORTED on all ranks if any rank cannot access another; CONFIG for invalid options; MISMATCH for
// options that differ between ranks. All failures have been reported through context.fail.
isthmus_status connect(const isthmus_backend_context& context, segment_connection& result);

// The segments of all ranks, and where their parts are.
//
// Segment rotation: In small groups the segments rotate with every round of the ring (t / depth), so that a
//   rank writes where it read in the previous round. A line that a peer has read since then is more than twice
//   as expensive to acquire. A block for a single rank alternates between the writer's and the reader's
//   segment. All other segments pass to the rank that reads them last: it writes there in the next round. Large
//   groups do not rotate: visiting every page would take as many rounds as there are ranks, and by then all other
//   ranks would have read the lines.
class node_segments {
 public:
  node_segments(const isthmus_backend_context& context, const segment_connection& connected);

  int rank() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const isthmus_backend_context& context() const { return m_context; }
  const geometry& sizes() const { return m_sizes; }
  const tuning_parameters& parameters() const { return m_parameters; }
  const cpu::kernel_table& kernels() const { return m_kernels; }
  bool is_same_process(int peer) const {
    return m_context.process_of[peer] == m_context.process_of[m_context.rank];
  }
  pid_t pid_of(int peer) const {
    return static_cast<pid_t>(m_segments[static_cast<std::size_t>(peer)]->address().pid);
  }
  bool is_one_process() const { return m_context.process_size == m_context.size; }

  segment_header& header(int rank) const { return locate<segment_header>(rank, 0); }
  // Data that `rank` publishes under a sequence number.
  slot_header& slot(int rank, std::uint64_t sequence) const {
    return locate<slot_header>(home_segment(rank, sequence), slot_offset(sequence));
  }
  packet_line* packets(int rank, std::uint64_t sequence) const {
    return &locate<packet_line>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_packets());
  }
  // Packets of a call in which only `root` publishes. The root reads nothing, so they are always in
  // its own segment.
  packet_line* root_packets(int root, std::uint64_t sequence) const {
    return &locate<packet_line>(root, slot_offset(sequence) + m_layout.slot_packets());
  }
  std::byte* data(int rank, std::uint64_t sequence) const {
    return &locate<std::byte>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_data());
  }
  std::byte* result(int rank, std::uint64_t sequence) const {
    return &locate<std::byte>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_result());
  }
  // Block of a slot that only `to` reads.
  packet_line* packets_for(int to, int from, std::uint64_t sequence) const {
    const auto [segment, block] = locate_block(from, to, sequence);
    return &locate<packet_line>(segment, slot_offset(sequence) + m_layout.slot_packets()) +
           static_cast<std::uint64_t>(block) * m_sizes.packet_block_lines(size());
  }
  std::byte* data_for(int to, int from, std::uint64_t sequence) const {
    const auto [segment, block] = locate_block(from, to, sequence);
    return &locate<std::byte>(segment, slot_offset(sequence) + m_layout.slot_data()) +
           static_cast<std::uint64_t>(block) * m_sizes.slot_block_bytes(size());
  }
  cell_header& cell(int owner, channel_kind kind, int destination, std::uint64_t sequence) const {
    return locate<cell_header>(
        owner, m_layout.cell(kind, static_cast<std::uint64_t>(destination), sequence % m_sizes.cells));
  }
  copy_request& request_of(int rank) const { return locate<copy_request>(rank, m_layout.copy_request()); }
  // State of `owner` as the receiver of its channel from `source`.
  receiver_state& receiver(int owner, channel_kind kind, int source) const {
    return locate<receiver_state>(owner, m_layout.receiver_state(kind, static_cast<std::uint64_t>(source)));
  }

 private:
  template <typename Type>
  Type& locate(int rank, std::uint64_t offset) const {
    return *reinterpret_cast<Type*>(m_bases[static_cast<std::size_t>(rank)] + offset);
  }
  std::uint64_t slot_offset(std::uint64_t sequence) const {
    return m_layout.slot(sequence & (m_sizes.depth - 1));
  }
  std::uint64_t ring_round(std::uint64_t sequence) const { return sequence >> m_depth_bits; }
  // Segment in which `rank` publishes. In the next round, the rank that reads it last publishes there.
  int home_segment(int rank, std::uint64_t sequence) const {
    const auto ranks = static_cast<std::uint32_t>(size());
    if (ranks > max_rotating_ranks) return rank;
    const std::uint32_t shift = static_cast<std::uint32_t>(ring_round(sequence)) % ranks;
    return static_cast<int>((static_cast<std::uint32_t>(rank) + ranks - shift) % ranks);
  }
  struct slot_block {
    int segment, block;
  };
  slot_block locate_block(int from, int to, std::uint64_t sequence) const {
    return ring_round(sequence) % 2 == 0 ? slot_block{from, to} : slot_block{to, from};
  }

  isthmus_backend_context m_context;
  geometry m_sizes;
  tuning_parameters m_parameters;
  const cpu::kernel_table& m_kernels = cpu::kernels();
  segment_layout m_layout;
  int m_depth_bits;
  std::vector<std::shared_ptr<shared_segment>> m_segments;
  std::vector<std::byte*> m_bases;
};

}  // namespace isthmus::shm
