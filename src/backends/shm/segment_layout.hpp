// What lies in the shared segment of a rank. Every line (64 bytes) has one writer, the owner of the segment,
// except `poison` and the slots, whose writers take turns. Flags count sequence numbers, so nothing is ever
// reset: see node_group.hpp for the protocol.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace isthmus::shm {

inline constexpr std::size_t line_bytes = 64;
inline constexpr std::size_t page_bytes = 4096;
using flag = std::atomic<std::uint64_t>;
static_assert(flag::is_always_lock_free, "flags are shared between processes");

// Whoever stages sequence t is done with all sequence numbers below t - lookahead (node_group.hpp). Deeper rings keep
// a rank from staging where it still reads itself.
inline constexpr std::uint64_t lookahead = 4, min_depth = 2 * lookahead;

// So many ranks exchange their segments in turns (node_group.hpp).
inline constexpr std::uint32_t max_rotating_ranks = 4;

// Tunable sizes, equal on all ranks.
struct geometry {
  std::uint64_t slot_bytes;    // staging per sequence number
  std::uint64_t packet_lines;  // lines of packets per sequence number
  std::uint64_t depth;         // sequence numbers in flight; a power of two, at least min_depth
  std::uint64_t cell_bytes;    // payload of one cell of a channel
  std::uint64_t cells;         // cells per channel

  // Where every rank gets a part of a slot's staging, or of its packets.
  std::uint64_t slot_block_bytes(int ranks) const {
    return slot_bytes / static_cast<std::uint64_t>(ranks) / line_bytes * line_bytes;
  }
  std::uint64_t packet_block_lines(int ranks) const { return packet_lines / static_cast<std::uint64_t>(ranks); }
  bool operator==(const geometry&) const = default;
};

// A rank tells in what form it wishes that ranks store shared data, for each kind of call that it judges: see
// store_chooser.hpp. Only a hint.
using store_hint = std::atomic<std::uint8_t>;
inline constexpr std::uint8_t hint_cached = 0, hint_streaming = 1;
inline constexpr std::size_t hint_size_classes = 65;  // by the number of bits of the size in bytes
inline constexpr std::size_t hint_count = 16 * hint_size_classes;
constexpr std::size_t hint_index(std::size_t collective, int size_bits) {
  return collective * hint_size_classes + static_cast<std::size_t>(size_bits);
}

struct alignas(line_bytes) segment_header {
  flag abort_word;                        // 0, or who failed and how (node_group.cpp); any rank writes it
  alignas(line_bytes) flag has_departed;  // 1 once the rank has destroyed its communicator
  flag write_flag;                        // 1 while the rank may write into memory of others (write_gate.hpp)
  flag started;                       // sequence numbers that it has taken
  flag awaited_rank;                        // 1 + the rank that it has been waiting for; 0: none, or not for long
  flag last_core;                          // 1 + the core that it has waited on last; 0: unknown
  alignas(line_bytes) flag completed;      // all sequence numbers below are complete on this rank
  alignas(line_bytes) store_hint store_hints[hint_count];
};
static_assert(sizeof(segment_header) <= page_bytes);

// One buffer as all ranks understand it.
struct buffer_location {
  std::uint64_t block_id;  // id + 1 of its block of the symmetric heap; 0: it is in none
  std::uint64_t offset;  // in the block
  std::byte* address;    // in its owner's process; NULL: the others can't copy from and to there
};

// A line that carries its own flag: one cache miss moves both.
struct alignas(line_bytes) packet_line {
  static constexpr std::size_t capacity = line_bytes - sizeof(flag);
  flag ready;  // sequence number + 1
  std::byte payload[capacity];
};

struct alignas(line_bytes) slot_header {
  flag staged;  // sequence number + 1: the slot's data, or the locations, can be read
  buffer_location send;
  buffer_location recv;
  std::uint64_t call_signature;             // of the call that the locations belong to (zero_copy.cpp)
  alignas(line_bytes) flag reduced;  // sequence number + 1: the slot's result can be read
};

// One cell of a channel from the owner of the segment to one peer: a piece of a message, or several short
// messages of one group. These begin with their lengths.
struct alignas(line_bytes) cell_header {
  // What is sent as an address is copied in parts by whichever side takes them, the receiver out of the
  // sender's buffer, the sender into the receiver's.
  static constexpr std::uint64_t fragment_bytes = 256 << 10;

  flag ready;                   // sequence number + 1
  std::uint64_t message_count;       // 1, or how many short ones
  std::uint64_t message_bytes;  // of the whole message, to catch ranks that disagree; of several it is not set
  std::uint64_t bytes;          // in this cell
  const std::byte* address;  // where the whole message is in the sender, which the receiver can read; else NULL
  flag claimed_fragments;          // by either side, or more
  flag pushed_fragments;         // copied by the sender
};

// What the owner of the segment tells one of its senders.
struct alignas(line_bytes) receiver_state {
  flag acknowledged;  // cells taken, ever
  flag offered_cell;       // sequence number + 1 of the cell whose message may be written to `buffer`
  std::byte* buffer;
  std::uint64_t bytes;  // of the message that the owner expects there
};

// Channels of point-to-point messages and of the collectives whose counts only some ranks know are kept
// apart, because those two kinds may overtake each other.
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
  // Packets have lines of their own: staged data could look like a packet's flag.
  std::uint64_t slot_packets() const { return sizeof(slot_header); }
  // Slices begin with a page: a processor's prefetcher stops at its end.
  std::uint64_t slot_data() const {
    return round_up(slot_packets() + m_sizes.packet_lines * line_bytes, page_bytes);
  }
  std::uint64_t slot_result() const { return slot_data() + m_sizes.slot_bytes; }
  // One slice, for a slot is reduced by all ranks together.
  std::uint64_t result_bytes() const {
    return round_up((m_sizes.slot_bytes + m_size - 1) / m_size, line_bytes);
  }
  std::uint64_t cell(channel_kind kind, std::uint64_t destination, std::uint64_t index) const {
    const std::uint64_t channel = static_cast<std::uint64_t>(kind) * m_size + destination;
    return slot(m_sizes.depth) + (channel * m_sizes.cells + index) * cell_stride();
  }
  std::uint64_t bytes() const { return round_up(cell(channel_kind::collective, m_size, 0), page_bytes); }

 private:
  std::uint64_t slots_begin() const {
    return round_up(page_bytes + channel_kinds * m_size * line_bytes, page_bytes);
  }
  // the page more keeps the slots of a rank from falling into the same cache sets
  std::uint64_t slot_stride() const {
    return round_up(slot_result() + result_bytes(), page_bytes) + page_bytes;
  }
  std::uint64_t cell_stride() const { return sizeof(cell_header) + m_sizes.cell_bytes; }

  geometry m_sizes;
  std::uint64_t m_size;
};

}  // namespace isthmus::shm
