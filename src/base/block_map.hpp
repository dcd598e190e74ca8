// Block layout of one operation as seen by one rank: which bytes go to which rank. It applies the extents of
// the collective table (collectives.def) to the operation.
//
// Lifetime: count and displacement arrays are referenced, not copied, so they must outlive the map.
// Precondition: the operation has been validated.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <cstdint>

#include "base/tables.hpp"

namespace isthmus {

inline constexpr int all_ranks = -1, no_rank = -2;

// A byte range of a buffer.
struct block {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// The blocks of one buffer, in elements: one per rank, or one block shared by all ranks.
struct block_list {
  extent shape = extent::nothing;
  std::uint64_t count = 0;
  const std::uint64_t* counts = nullptr;
  const std::uint64_t* displs = nullptr;

  constexpr std::uint64_t begin(int peer) const {
    if (shape == extent::count_x_size) return static_cast<std::uint64_t>(peer) * count;
    return shape == extent::counts ? displs[peer] : 0;
  }
  constexpr std::uint64_t length(int peer) const {
    if (shape == extent::counts) return counts[peer];
    return shape == extent::nothing ? 0 : count;
  }
  // Returns the end of the last non-empty block, counted from the start of the buffer.
  constexpr std::uint64_t end(int size) const {
    if (shape != extent::counts) return shape == extent::count_x_size ? begin(size) : length(0);
    std::uint64_t end = 0;
    for (int peer = 0; peer < size; ++peer)
      if (counts[peer] > 0) end = std::max(end, displs[peer] + counts[peer]);
    return end;
  }
};

struct block_map {
  std::uint64_t element_bytes = 0;
  int rank = 0, size = 0;
  int source = no_rank;    // the rank that sends, all_ranks or no_rank
  int receiver = no_rank;  // the rank that receives, all_ranks or no_rank
  block_list send, recv;   // of this rank; undefined if the rank does not use the buffer

  constexpr block_map() = default;
  constexpr block_map(const isthmus_operation& operation, int own_rank, int ranks);

  constexpr bool is_source(int peer) const { return source == all_ranks || source == peer; }
  constexpr bool is_receiver(int peer) const { return receiver == all_ranks || receiver == peer; }

  // Returns the block of this rank's send buffer that `destination` receives. The block is empty if
  // `destination` receives nothing.
  constexpr block outgoing_block(int destination) const {
    if (!is_source(rank) || !is_receiver(destination)) return {};
    return {send.begin(destination) * element_bytes, send.length(destination) * element_bytes};
  }
  // Returns the block of this rank's receive buffer into which data from `origin` is written. Reductions use
  // the same block for all origins.
  constexpr block incoming_block(int origin) const {
    if (!is_receiver(rank) || !is_source(origin)) return {};
    return {recv.begin(origin) * element_bytes, recv.length(origin) * element_bytes};
  }

  // Return the extent of this rank's buffer, including gaps between blocks, or 0 if the rank does not use the
  // buffer. They take O(size) time for buffers with counts.
  constexpr std::uint64_t send_bytes() const { return is_source(rank) ? send.end(size) * element_bytes : 0; }
  constexpr std::uint64_t recv_bytes() const { return is_receiver(rank) ? recv.end(size) * element_bytes : 0; }

  // Returns true if a source sends the same block to every receiver.
  constexpr bool sends_same_block() const { return send.shape == extent::count; }
  // Returns the maximum number of bytes that any other rank receives from `origin`. The result is the same on
  // all ranks, including those that neither send nor receive. Precondition: has_private_counts is false.
  constexpr std::uint64_t max_incoming_bytes(int origin) const {
    if (!is_source(origin) || receiver == origin || size == 1) return 0;
    if (send.shape == extent::counts) {
      std::uint64_t max_count = 0;
      for (int destination = 0; destination < size; ++destination)
        if (destination != origin) max_count = std::max(max_count, send.counts[destination]);
      return max_count * element_bytes;
    }
    return recv.length(origin) * element_bytes;
  }
};

constexpr block_map::block_map(const isthmus_operation& operation, int own_rank, int ranks)
    : element_bytes(bytes_of(operation.datatype)), rank(own_rank), size(ranks) {
  const collective_row& row = row_of(operation.collective);
  const int root = operation.root;
  send = {row.send_extent, operation.count, operation.send_counts, operation.send_displs};
  recv = {row.recv_extent, operation.count, operation.recv_counts, operation.recv_displs};
  if (row.peer == peer_kind::peer) {
    const bool is_sender = row.send_ranks == buffer_ranks::all;
    source = is_sender ? rank : root;
    receiver = is_sender ? root : rank;
    return;
  }
  const auto ranks_of = [root](buffer_ranks set) {
    if (set == buffer_ranks::all) return all_ranks;
    return set == buffer_ranks::root ? root : no_rank;
  };
  source = ranks_of(row.send_ranks);
  receiver = ranks_of(row.recv_ranks);
}

// Returns true if this rank uses both buffers and they alias as the collective table allows.
inline bool is_in_place(const isthmus_operation& operation, const block_map& blocks) {
  if (!blocks.is_source(blocks.rank) || !blocks.is_receiver(blocks.rank)) return false;
  const auto send = reinterpret_cast<std::uintptr_t>(operation.send_buf);
  const auto recv = reinterpret_cast<std::uintptr_t>(operation.recv_buf);
  const auto own_offset = [&](const block_list& list) {
    return list.begin(blocks.rank) * blocks.element_bytes;
  };
  switch (row_of(operation.collective).in_place) {
    case alias_rule::never: return false;
    case alias_rule::same:
      if (send != recv) return false;
      if (blocks.send.shape != extent::counts) return true;
      return std::equal(blocks.send.counts, blocks.send.counts + blocks.size, blocks.recv.counts) &&
             std::equal(blocks.send.displs, blocks.send.displs + blocks.size, blocks.recv.displs);
    case alias_rule::recv_block: return send == recv + own_offset(blocks.recv);
    case alias_rule::send_block: return recv == send + own_offset(blocks.send);
  }
  return false;
}

// Returns true if an in-place operation can overwrite a block before it has been sent (alltoall). Conservative:
// also true for equal send and receive buffers with interleaved blocks.
inline bool overwrites_unsent_data(const isthmus_operation& operation) {
  const collective_row& row = row_of(operation.collective);
  return operation.send_buf == operation.recv_buf && row.in_place == alias_rule::same &&
         row.send_extent != extent::count;
}

// Returns a copy of an operation that outlives the call, with copies of its counts and displacements in `arrays`.
// Copies only the arrays that this rank uses, because the other pointers may be invalid.
//
// Arrays: a container of std::vector<std::uint64_t>.
template <typename Arrays>
isthmus_operation copy_operation(const isthmus_operation& operation, int rank, int size, Arrays& arrays) {
  const block_map blocks(operation, rank, size);
  const bool uses_send_counts = blocks.send.shape == extent::counts && blocks.is_source(rank);
  const bool uses_recv_counts = blocks.recv.shape == extent::counts && blocks.is_receiver(rank);
  const auto copy_array = [&](const std::uint64_t* array, bool is_used) -> const std::uint64_t* {
    return is_used ? arrays.emplace_back(array, array + size).data() : nullptr;
  };
  isthmus_operation copy = operation;
  copy.send_counts = copy_array(operation.send_counts, uses_send_counts);
  copy.send_displs = copy_array(operation.send_displs, uses_send_counts);
  copy.recv_counts = copy_array(operation.recv_counts, uses_recv_counts);
  copy.recv_displs = copy_array(operation.recv_displs, uses_recv_counts);
  return copy;
}

}  // namespace isthmus
