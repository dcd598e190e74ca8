// Messages between pairs of ranks: send and recv, and the collectives whose counts only some ranks know.
// A channel is a ring of cells in the sender's segment, in order, with one writer and one reader. Short
// messages that one call sends to the same peer share a cell: one flag, one acknowledgement.
#pragma once

#include <isthmus/types.h>

#include <span>
#include <vector>

#include "backends/host/team.hpp"
#include "base/block_map.hpp"

namespace isthmus::shm {

// One message in progress.
struct transfer {
  static constexpr std::size_t no_gate = ~std::size_t{0}, no_transfer = ~std::size_t{0};

  bool sends;
  int peer;
  std::byte* buffer;  // const in truth where sends
  std::uint64_t bytes;
  // alltoallv in place: a piece may only be received over what the transfer with this index has sent
  std::size_t gate = no_gate;
  std::uint64_t moved = 0;
  bool in_place = false;     // the buffer is received into as well, so it must not be sent as an address
  bool by_address = false;   // sent as an address; complete when the peer has all of it
  bool offered = false;      // the peer has been told where it may write
  std::uint64_t pulled = 0;  // parts of what the peer sent as an address
  bool complete = false;
  std::size_t next = no_transfer;  // with the same peer in the same direction
};

// The messages of a call with one peer in one direction, in order; only the first unfinished one moves.
struct transfer_queue {
  bool sends;
  int peer;
  std::size_t first, last;  // in the list of transfers
};

class channels {
 public:
  explicit channels(node_group& group);

  // All send and recv operations of a batch, together. Waits until they are complete.
  void run_messages(std::span<const isthmus_operation> operations);
  // Any that moves blocks and reduces nothing.
  void run_collective(const isthmus_operation& operation);

 private:
  struct ends {
    std::uint64_t sent = 0, received = 0;  // cells, ever
    // of the cell of several messages that is next: what has been received of it
    std::uint64_t unpacked = 0, unpacked_bytes = 0;
  };

  struct own_message {
    transfer* send = nullptr;
    transfer* receive = nullptr;
  };

  void add(bool sends, int peer, const void* buffer, std::uint64_t bytes);
  void add_with(int peer, const isthmus_operation& operation, const block_map& blocks);
  void pair_self();
  bool copy_one_of_own();
  void make_queues();
  void progress_all(channel_kind kind);
  bool progress(channel_kind kind, transfer_queue& of);
  bool send_cells(channel_kind kind, transfer_queue& of);
  void send_address(cell_header& cell, transfer& moving);
  void send_piece(cell_header& cell, transfer& moving);
  bool can_share_cell(const transfer& each) const;
  bool send_together(cell_header& cell, transfer_queue& of);
  bool push_part(channel_kind kind, transfer& moving);
  bool receive_cells(channel_kind kind, transfer& moving);
  void receive_one_of_several(transfer& moving, cell_header& cell, ends& own);
  void offer(channel_kind kind, transfer& moving);
  bool pull_part(transfer& moving, cell_header& cell);
  void check_message(const transfer& expected, std::uint64_t sent_bytes);
  ends& ends_of(channel_kind kind, int peer) {
    return m_ends[static_cast<std::size_t>(kind) * static_cast<std::size_t>(m_group.size()) +
                  static_cast<std::size_t>(peer)];
  }

  node_group& m_group;
  std::vector<ends> m_ends;
  std::vector<transfer> m_transfers;
  std::vector<own_message> m_own;
  std::vector<transfer_queue> m_queues;
  std::vector<std::size_t> m_queue_of;  // per direction and peer
  std::vector<int> m_awaited;           // peers of unfinished transfers
};

}  // namespace isthmus::shm
