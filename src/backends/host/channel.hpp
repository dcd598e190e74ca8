// Messages between pairs of ranks: send and recv, and the collectives whose counts only some ranks know.
// A channel is a ring of cells in the sender's segment, in order, with one writer and one reader.
#pragma once

#include <isthmus/types.h>

#include <span>
#include <vector>

#include "backends/host/team.hpp"
#include "base/block_map.hpp"

namespace isthmus::host {

// One message in progress.
struct transfer {
  static constexpr std::size_t no_gate = ~std::size_t{0};

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
};

class channels {
 public:
  explicit channels(team& team);

  // All send and recv operations of a batch, together. Waits until they are complete.
  void run_messages(std::span<const isthmus_operation> operations);
  // Any that moves blocks and reduces nothing.
  void run_collective(const isthmus_operation& operation);

 private:
  struct ends {
    std::uint64_t sent = 0, received = 0;  // cells, ever
  };

  struct own_message {
    transfer* send = nullptr;
    transfer* receive = nullptr;
  };

  void add(bool sends, int peer, const void* buffer, std::uint64_t bytes);
  void add_with(int peer, const isthmus_operation& operation, const block_map& blocks);
  void pair_self();
  void copy_own();
  void progress_all(channel_kind kind);
  bool progress(channel_kind kind, transfer& moving);
  bool send_cells(channel_kind kind, transfer& moving);
  bool push_part(channel_kind kind, transfer& moving);
  bool receive_cells(channel_kind kind, transfer& moving);
  void offer(channel_kind kind, transfer& moving);
  bool pull_part(transfer& moving, cell_header& cell);
  void check_message(const transfer& expected, const cell_header& cell);
  ends& ends_of(channel_kind kind, int peer) {
    return m_ends[static_cast<std::size_t>(kind) * static_cast<std::size_t>(m_team.size()) +
                  static_cast<std::size_t>(peer)];
  }

  team& m_team;
  std::vector<ends> m_ends;
  std::vector<transfer> m_transfers;
  std::vector<own_message> m_own;
  std::vector<char> m_busy;    // per direction and peer: an earlier message is still under way
  std::vector<int> m_awaited;  // peers of unfinished transfers
};

}  // namespace isthmus::host
