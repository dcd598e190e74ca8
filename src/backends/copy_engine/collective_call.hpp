// The algorithms of the copy_engine backend, and their base class, which signals through the channel's flags and assigns
// copies to streams. Rules name the algorithms after "copy_engine:".
//
// Ordering: A call completes even if each rank executes its commands strictly in the order of issue. This
//   matters because a driver may map streams that appear independent to one hardware queue.
#pragma once

#include <isthmus/backend.h>

#include <span>
#include <vector>

#include "backends/copy_engine/call_log.hpp"
#include "backends/copy_engine/resources.hpp"
#include "base/block_map.hpp"

namespace isthmus::copy_engine {

// Each algorithm defines which rank copies, and between which buffers:
//   staged: readers fetch from the staging slots of the sources
//   zero_copy: readers fetch from the user buffers of the sources
//   push: sources write to the user buffers of the readers
//   reduce: sources write to the staging slots of the readers, where a kernel combines the data. It has no name
//     for rules because it is the only algorithm of reduce_scatter.
enum class copy_algorithm : std::uint8_t { staged, zero_copy, push, reduce };

// Addresses of the peers' user buffers, if all of them are in the symmetric heap.
struct direct_buffers {
  bool is_valid = false;               // if false, the other members are undefined
  std::vector<std::byte*> addresses;   // by peer: the part of its buffer that this rank reads or writes
  bool needs_own_block_first = false;  // this rank first copies its block to its receive buffer
  std::uint64_t heap_position = 0;     // identifies block and offset; equal on all ranks
};

// Returns the reason why a collective can never access user buffers directly (zero_copy or push), or nullptr if
// it depends on the buffers.
const char* unsupported_direct_reason(isthmus_collective collective);

// Fills `buffers` in for algorithm zero_copy or push. buffers.is_valid is false if this rank's buffers are not
// in the symmetric heap. A rank computes its peers' addresses from its own, so every rank must use the same
// offset of the same block; the tags of the signals verify it.
void find_direct_buffers(const isthmus_backend_context& context, const isthmus_operation& operation,
                         const block_map& blocks, copy_algorithm algorithm, direct_buffers& buffers);

// One call to issue. `record` contains the call's id. The algorithm fills in the other members and adds the
// record to `log` before it issues any command.
struct call_request {
  rank_resources& resources;
  const isthmus_operation& operation;
  const block_map& blocks;
  call_record& record;
  call_log& log;
  bool is_captured;
};

// The algorithms. Each function issues all commands of a call.
void issue_direct(const call_request& request, copy_algorithm algorithm,
                  const direct_buffers& buffers);  // zero_copy or push
void issue_staged(const call_request& request);
void issue_reduce(const call_request& request, native_kernel kernel);  // reduce_scatter

// One data transfer that this rank executes: wait for the peer's flag, copy, acknowledge.
struct block_transfer {
  transfer_slot slot;
  int peer;
  const std::byte* source;
  std::byte* destination;
  std::uint64_t bytes;
};

class collective_call {
 protected:
  collective_call(const call_request& request, copy_algorithm algorithm);

  // Must be called first: it registers with the watchdog what this call waits for. `position`: the value on
  // which the ranks must agree in addition to the operation.
  void begin(std::uint64_t position);
  void record_progress() { m_resources.main.write(m_resources.progress_word(), m_request.record.id); }

  // Return the bytes that the peer copies from or to this rank, and that this rank copies from or to the peer.
  // Both are 0 for the rank itself.
  std::uint64_t bytes_peer_copies(int peer) const;
  std::uint64_t bytes_to_copy(int peer) const;
  // In step k, each rank copies from or to rank r+k, and rank r-k copies from or to it.
  int next_peer(int step) const { return (m_resources.rank + step) % m_resources.size; }
  int previous_peer(int step) const { return (m_resources.rank + m_resources.size - step) % m_resources.size; }

  command_batch& batch_for(int peer);
  void fork_streams();
  void join_streams();
  void copy_own_block(command_batch& batch);
  void start_own_block();
  void join_local() {
    m_resources.main.follow(m_resources.local_copies.commands, m_resources.local_copies.join_event);
  }

  // Offers a slot to every peer whose block has bytes past `offset`. All acknowledgements are set to pending
  // before any peer is signaled, because a fast peer could acknowledge immediately.
  void set_pending(command_batch& batch, transfer_slot slot, std::uint64_t offset);
  void signal_ready(command_batch& batch, transfer_slot slot, std::uint64_t offset);
  void wait_acknowledged(command_batch& batch, transfer_slot slot);  // by all peers
  void wait_ready(command_batch& batch, std::span<const block_transfer> transfers);
  void acknowledge(command_batch& batch, const block_transfer& transfer);
  // `transfers` must be in the order in which this rank visits its peers.
  void copy_all(const std::vector<block_transfer>& transfers);

  const call_request& m_request;
  rank_resources& m_resources;
  const block_map& m_blocks;
  const std::byte* m_send;
  std::byte* m_recv;
  copy_algorithm m_algorithm;
  bool m_waits_for_all;            // small message: waits for all peers, then copies from all of them
  bool m_uses_one_stream = false;  // in place: data must be staged before it is fetched
  bool m_has_local_copy = false;   // the local stream copies this rank's own block

 private:
  bool sources_copy() const {
    return m_algorithm == copy_algorithm::push || m_algorithm == copy_algorithm::reduce;
  }
  std::uint32_t tag_of(std::uint64_t bytes) const;

  std::uint64_t m_position = 0;
};

}  // namespace isthmus::copy_engine
