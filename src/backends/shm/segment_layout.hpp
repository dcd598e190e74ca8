// Layout of the shared segment of a rank.
//
// Every line (64 bytes) has one writer, the owner of the segment. The exceptions are the first line, which any
// rank writes, copy_request, which the peer answers, the slots, whose writers alternate, and claimed_fragments. Flags hold sequence
// numbers, so only `has_copy_requests` is ever reset. The protocol is described in node_group.hpp.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace isthmus::shm {

inline constexpr std::size_t line_bytes = 64;
inline constexpr std::size_t page_bytes = 4096;
using flag = std::atomic<std::uint64_t>;
static_assert(flag::is_always_lock_free, "flags are shared between processes");

// Value of a flag that a collective waits for: the sequence number + 1, and in the lower bits a part of the call's
// signature. A rank whose peer makes a different call detects that in the flag that it reads anyway.
inline constexpr int signature_bits = 16;
constexpr std::uint64_t call_flag(std::uint64_t sequence, std::uint64_t signature) {
  return (sequence + 1) << signature_bits | (signature >> (64 - signature_bits));
}

// A rank that stages sequence number t has completed all sequence numbers below t - lookahead (node_group.hpp).
// The ring must be deeper than that, so that a rank does not stage into a slot that it is still reading.
inline constexpr std::uint64_t lookahead = 4, min_depth = 2 * lookahead;

// Groups of up to this many ranks rotate their segments (node_group.hpp).
inline constexpr std::uint32_t max_rotating_ranks = 4;

// Tunable sizes. All sizes must be equal on all ranks.
struct geometry {
  std::uint64_t slot_bytes;    // staging per sequence number
  std::uint64_t packet_lines;  // lines of packets per sequence number
  std::uint64_t depth;         // sequence numbers in flight; a power of two, at least min_depth
  std::uint64_t cell_bytes;    // payload of one cell of a channel
  std::uint64_t cells;         // cells per channel

  // Returns the share of one rank in a slot's staging memory and in its packets, if each rank has
  // its own block.
  std::uint64_t slot_block_bytes(int ranks) const {
    return slot_bytes / static_cast<std::uint64_t>(ranks) / line_bytes * line_bytes;
  }
  std::uint64_t packet_block_lines(int ranks) const { return packet_lines / static_cast<std::uint64_t>(ranks); }
  bool operator==(const geometry&) const = default;
};

// Store mode that the timing rank recommends for one kind of call (stores.hpp). It is only a hint: any
// mode is correct.
using store_hint = std::atomic<std::uint8_t>;
inline constexpr std::uint8_t hint_cached = 0, hint_streaming = 1;
inline constexpr std::size_t hint_size_classes = 65;  // by the number of bits of the size in bytes
inline constexpr std::size_t hint_count = 16 * hint_size_classes;
constexpr std::size_t hint_index(std::size_t collective, int size_bits) {
  return collective * hint_size_classes + static_cast<std::size_t>(size_bits);
}

struct alignas(line_bytes) segment_header {
  flag abort_word;                        // 0, or the failed rank and the kind of failure; any rank writes it
  flag has_copy_requests;                 // 1 after a peer has posted a request; any rank writes it
  flag has_lost_access;                   // 1 once the kernel has refused a copy of the rank
  alignas(line_bytes) flag has_departed;  // 1 once the rank has destroyed its communicator
  flag write_flag;                        // 1 while the rank may write into memory of peers (peer_memory.hpp)
  flag last_core;                         // 1 + core on which the rank last waited; 0: unknown
  flag is_waiting;                        // 1 while the rank is in a long wait
  flag current_call;                      // call_flag of the first sequence number that was allocated last
  alignas(line_bytes) flag completed_sequence;  // all lower sequence numbers are complete on this rank
  alignas(line_bytes) store_hint store_hints[hint_count];
};
static_assert(sizeof(segment_header) <= page_bytes);

// Description of a buffer with which every rank can locate it.
struct buffer_location {
  std::uint64_t block_id;  // 1 + id of its block of the symmetric heap; 0: outside the heap
  std::uint64_t offset;    // in the block
  std::byte* address;      // in its owner's process; NULL: peers cannot copy from or to it

  // The block id of a rank that can neither copy from other processes nor be copied from.
  static constexpr std::uint64_t no_access = ~std::uint64_t{0};
};

// A line that contains its own flag, so that one cache miss transfers both.
struct alignas(line_bytes) packet_line {
  static constexpr std::size_t capacity = line_bytes - sizeof(flag);
  flag ready;  // call_flag
  std::byte payload[capacity];
};

struct alignas(line_bytes) slot_header {
  flag staged;  // call_flag: the slot's data or locations can be read
  buffer_location send;
  buffer_location recv;
  std::uint64_t call_signature;      // of the call that the locations belong to
  alignas(line_bytes) flag reduced;  // call_flag: the slot's result can be read
  flag claimed_fragments;  // of the block that this rank and the root copy together; may exceed their number
};

// One cell of a channel from the owner of the segment to one peer. It holds a chunk of a message, or several
// short messages of one group, preceded by their lengths.
struct alignas(line_bytes) cell_header {
  // A message sent by address is copied in fragments. Either side claims fragments: the receiver copies from
  // the sender's buffer, the sender copies into the receiver's buffer.
  static constexpr std::uint64_t fragment_bytes = 256 << 10;

  flag ready;                   // sequence number + 1
  std::uint64_t message_count;  // 1, or the number of packed short messages
  std::uint64_t message_bytes;  // of the whole message, to detect mismatches; unset for packed messages
  std::uint64_t bytes;          // in this cell
  const std::byte* address;     // whole message in the sender's process, readable by the receiver; or NULL
  flag claimed_fragments;       // claimed by either side; may exceed the number of fragments
  flag pushed_fragments;        // fragments that the sender has copied
};

// Receiver state that the owner of the segment publishes to one of its senders.
struct alignas(line_bytes) receiver_state {
  flag acknowledged;  // total number of cells received
  flag offered_cell;  // sequence number + 1 of the cell whose message may be written to `buffer`
  std::byte* buffer;
  std::uint64_t bytes;  // of the message that the owner expects there
};

// A copy that the kernel has refused to the owner of the segment. The peer copies between its memory and `data`
// instead (peer_memory.hpp).
struct alignas(line_bytes) copy_request {
  static constexpr std::uint64_t capacity = 32 << 10;

  flag posted;         // number of the request << 32 | the peer
  std::byte* address;  // in the peer's process
  std::uint64_t bytes;
  bool is_write;                    // to the peer's memory
  alignas(line_bytes) flag served;  // the served value of `posted`; written by the peer
  bool is_denied;                   // the peer has not published this memory
  alignas(line_bytes) std::byte data[capacity];
};

// Point-to-point messages and collectives use separate channels, because the two kinds may overtake each other.
enum class channel_kind : std::uint64_t { message, collective };
inline constexpr std::uint64_t channel_kinds = 2;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Offsets in a segment for `size` ranks.
class segment_layout {
 public:
  segment_layout(const geometry& sizes, std::uint64_t size) : m_sizes(sizes), m_size(size) {}

  std::uint64_t receiver_state(channel_kind kind, std::uint64_t source) const {
    return page_bytes + (static_cast<std::uint64_t>(kind) * m_size + source) * line_bytes;
  }
  std::uint64_t slot(std::uint64_t index) const { return slots_begin() + index * slot_stride(); }
  // Packets have separate lines, because staged data could look like a packet's flag.
  std::uint64_t slot_packets() const { return sizeof(slot_header); }
  // Slices are page-aligned, because hardware prefetchers stop at page boundaries.
  std::uint64_t slot_data() const {
    return round_up(slot_packets() + m_sizes.packet_lines * line_bytes, page_bytes);
  }
  std::uint64_t slot_result() const { return slot_data() + m_sizes.slot_bytes; }
  // One slice: each rank reduces its slice of a slot.
  std::uint64_t result_bytes() const {
    return round_up((m_sizes.slot_bytes + m_size - 1) / m_size, line_bytes);
  }
  std::uint64_t cell(channel_kind kind, std::uint64_t destination, std::uint64_t index) const {
    const std::uint64_t channel = static_cast<std::uint64_t>(kind) * m_size + destination;
    return slot(m_sizes.depth) + (channel * m_sizes.cells + index) * cell_stride();
  }
  std::uint64_t copy_request() const { return cell(channel_kind::collective, m_size, 0); }
  std::uint64_t bytes() const { return round_up(copy_request() + sizeof(shm::copy_request), page_bytes); }

 private:
  std::uint64_t slots_begin() const {
    return round_up(page_bytes + channel_kinds * m_size * line_bytes, page_bytes);
  }
  // The extra page keeps the slots of a rank from mapping to the same cache sets.
  std::uint64_t slot_stride() const {
    return round_up(slot_result() + result_bytes(), page_bytes) + page_bytes;
  }
  std::uint64_t cell_stride() const { return sizeof(cell_header) + m_sizes.cell_bytes; }

  geometry m_sizes;
  std::uint64_t m_size;
};

}  // namespace isthmus::shm
