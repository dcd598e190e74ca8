// What the strategies share: the channel's flags, and who copies what on which stream.
//
// Order. Whoever runs the commands of a rank one after the other, in the order in which they are issued,
// gets to the end of the call as long as the others do the same. That matters because a driver may put
// streams that seem independent into one queue.
#pragma once

#include <isthmus/backend.h>

#include <span>
#include <vector>

#include "backends/copy_engine/copy_algorithm.hpp"
#include "backends/copy_engine/call_log.hpp"
#include "backends/copy_engine/direct_buffers.hpp"
#include "backends/copy_engine/resources.hpp"
#include "base/block_map.hpp"

namespace isthmus::copy_engine {

// One call to be issued. `record` has the call's id; the rest of it is filled in by the strategy and goes to
// `log` before any command.
struct call_request {
  rank_resources& resources;
  const isthmus_operation& operation;
  const block_map& blocks;
  call_record& record;
  call_log& log;
  bool is_captured;
};

// The strategies: each issues the commands of the whole call.
void issue_direct(const call_request& request, copy_algorithm algorithm,
                  const direct_buffers& buffers);  // zero_copy or push
void issue_staged(const call_request& request);
void issue_reduce(const call_request& request, native_kernel kernel);  // reduce_scatter

// One data transfer of this rank: it waits for the peer's flag, copies, and acknowledges.
struct block_transfer {
  transfer_slot slot;
  int peer;
  const std::byte* from;
  std::byte* to;
  std::uint64_t bytes;
};

class collective_call {
 protected:
  collective_call(const call_request& request, copy_algorithm algorithm);

  // Before anything else: from here on the watchdog knows what this call waits for. `position`: what the ranks
  // have to agree on besides the operation.
  void begin(std::uint64_t position);
  void note_progress() { m_resources.main.write(m_resources.progress_word(), m_request.record.id); }

  // Bytes between this rank and a peer (0 for itself): what the peer copies, of ours or to us; and what we
  // copy.
  std::uint64_t bytes_copied_by(int peer) const;
  std::uint64_t bytes_copied_for(int peer) const;
  // Everybody starts with its right neighbour and is served by its left one first.
  int visited_peer(int step) const { return (m_resources.rank + step) % m_resources.size; }
  int visiting_peer(int step) const { return (m_resources.rank + m_resources.size - step) % m_resources.size; }

  command_batch& batch_for(int peer);
  void fork_streams();
  void join_streams();
  void copy_own_block(command_batch& batch);
  void start_own_block();
  void join_local() { m_resources.main.follow(m_resources.local_copies.commands, m_resources.local_copies.join_event); }

  // Hands a slot over to every peer that still needs bytes `beyond` the given place of its block: first all
  // acknowledgements become pending, since a peer may be that fast, then the peers are told.
  void set_pending(command_batch& batch, transfer_slot slot, std::uint64_t offset);
  void signal_ready(command_batch& batch, transfer_slot slot, std::uint64_t offset);
  void wait_acknowledged(command_batch& batch, transfer_slot slot);  // by all peers
  void wait_ready(command_batch& batch, std::span<const block_transfer> transfers);
  void acknowledge(command_batch& batch, const block_transfer& transfer);
  // `wanted` is in the order in which this rank visits its peers.
  void copy_all(const std::vector<block_transfer>& transfers);

  const call_request& m_request;
  rank_resources& m_resources;
  const block_map& m_blocks;
  const std::byte* m_send;
  std::byte* m_recv;
  copy_algorithm m_algorithm;
  bool m_waits_for_all;            // small: wait for all peers, then copy from all
  bool m_uses_one_stream = false;  // in place: fetching must not overtake staging
  bool m_has_local_copy = false;  // the own block is being copied on the local stream

 private:
  bool sources_copy() const { return m_algorithm == copy_algorithm::push || m_algorithm == copy_algorithm::reduce; }
  std::uint32_t tag_of(std::uint64_t bytes) const;

  std::uint64_t m_position = 0;
};

}  // namespace isthmus::copy_engine
