// Channels carry messages between pairs of ranks: send and recv, and collectives whose counts are not known to
// all ranks.
//
// A channel is an ordered ring of cells in the sender's segment, with one writer and one reader. Short messages
// that one call sends to the same peer share a cell, and so share one flag and one acknowledgement.
#pragma once

#include <isthmus/types.h>

#include <span>
#include <vector>

#include "backends/shm/node_group.hpp"
#include "base/block_map.hpp"

namespace isthmus::shm {

// One message in progress.
struct message_transfer {
  static constexpr std::size_t no_prerequisite = ~std::size_t{0}, no_transfer = ~std::size_t{0};

  bool is_send;
  int peer;
  std::byte* buffer;  // not written by sends
  std::uint64_t bytes;
  // In-place alltoallv: the transfer that must send data from this memory before other data is
  // received into it.
  std::size_t prerequisite = no_prerequisite;
  std::uint64_t transferred_bytes = 0;
  bool is_in_place = false;            // the buffer also receives data, so it must not be sent by address
  bool is_by_address = false;          // sent by address; complete when the peer has received everything
  bool is_offered = false;             // the receive buffer has been offered to the peer
  std::uint64_t pulled_fragments = 0;  // fragments copied from a message that the peer sent by address
  bool is_complete = false;
  std::size_t next = no_transfer;  // next transfer with the same peer and direction
};

// The messages of a call with one peer in one direction, in order. Only the first unfinished one progresses.
struct message_queue {
  bool is_send;
  int peer;
  std::size_t first, last;  // in the list of transfers
};

class channels {
 public:
  explicit channels(node_group& group);

  // Runs all send and recv operations of a batch concurrently and waits until they are complete.
  void run_messages(std::span<const isthmus_operation> operations);
  // Runs any collective that does not reduce.
  void run_collective(const isthmus_operation& operation);

 private:
  struct channel_ends {
    std::uint64_t sent_cells = 0, received_cells = 0;  // total numbers of cells
    // messages and bytes already received from the current packed cell
    std::uint64_t unpacked_messages = 0, unpacked_bytes = 0;
  };

  struct self_message {
    message_transfer* send = nullptr;
    message_transfer* receive = nullptr;
  };

  void add_transfer(bool is_send, int peer, const void* buffer, std::uint64_t bytes);
  void add_peer_transfers(int peer, const isthmus_operation& operation, const block_map& blocks);
  void match_self_messages();
  bool copy_next_self_message();
  void make_queues();
  void run_transfers(channel_kind kind);
  bool progress_queue(channel_kind kind, message_queue& queue);
  bool send_cells(channel_kind kind, message_queue& queue);
  void send_address(cell_header& cell, message_transfer& transfer);
  void send_chunk(cell_header& cell, message_transfer& transfer);
  bool can_pack(const message_transfer& each) const;
  bool send_packed(cell_header& cell, message_queue& queue);
  bool push_fragment(channel_kind kind, message_transfer& transfer);
  bool receive_cells(channel_kind kind, message_transfer& transfer);
  void receive_packed(message_transfer& transfer, cell_header& cell, channel_ends& ends);
  void offer_buffer(channel_kind kind, message_transfer& transfer);
  bool pull_fragment(message_transfer& transfer, cell_header& cell);
  void check_length(const message_transfer& expected, std::uint64_t sent_bytes);
  channel_ends& ends_of(channel_kind kind, int peer) {
    return m_ends[static_cast<std::size_t>(kind) * static_cast<std::size_t>(m_group.size()) +
                  static_cast<std::size_t>(peer)];
  }

  node_group& m_group;
  std::vector<channel_ends> m_ends;
  std::vector<message_transfer> m_transfers;
  std::vector<self_message> m_self_messages;
  std::vector<message_queue> m_queues;
  std::vector<std::size_t> m_queue_index;  // per direction and peer
  std::vector<int> m_pending_peers;        // peers of unfinished transfers
};

}  // namespace isthmus::shm
