// Algorithms zero_copy and push: transfers between user buffers in the symmetric heap, without staging.
#include <optional>

#include "backends/copy_engine/collective_call.hpp"

namespace isthmus::copy_engine {
namespace {

// ---- buffers ------------------------------------------------------------------------------------------

// A buffer at the same heap position on every rank, and the part of it that this rank copies from or to.
struct heap_range {
  const void* base;
  std::uint64_t bytes;        // must be in the heap
  bool is_at_receive_offset;  // peer data is at its receive offset; otherwise all at `offset`
  std::uint64_t offset;
  bool needs_own_block_first;  // this rank first copies its block to its receive buffer
};

// zero_copy: peers fetch from the send buffer, or from a receive buffer that contains this rank's block.
std::optional<heap_range> fetch_range(const isthmus_operation& operation, const block_map& blocks) {
  const void* recv = operation.recv_buf;
  // Only the root has a send buffer; every rank has a receive buffer.
  if (blocks.source != all_ranks) return heap_range{recv, blocks.recv_bytes(), false, 0, true};
  if (!blocks.sends_same_block())
    return heap_range{operation.send_buf, blocks.send_bytes(), false, blocks.outgoing_block(blocks.rank).offset,
                      false};
  // A rank that contributes nothing may pass any send buffer, so the receive buffers are used.
  if (has_counts(row_of(operation.collective))) return heap_range{recv, blocks.recv_bytes(), true, 0, true};
  if (is_in_place(operation, blocks)) return heap_range{recv, blocks.recv_bytes(), true, 0, false};
  return heap_range{operation.send_buf, blocks.send_bytes(), false, 0, false};
}

// push: sources write their blocks to the receive buffers.
heap_range push_range(const isthmus_operation& operation, const block_map& blocks) {
  return {operation.recv_buf, blocks.recv_bytes(), false, blocks.incoming_block(blocks.rank).offset, false};
}

// No range if the call overwrites data that peers still have to fetch.
std::optional<heap_range> direct_range(const isthmus_operation& operation, const block_map& blocks,
                                       copy_algorithm algorithm) {
  if (unsupported_direct_reason(operation.collective) != nullptr || overwrites_unsent_data(operation))
    return std::nullopt;
  return algorithm == copy_algorithm::push ? push_range(operation, blocks) : fetch_range(operation, blocks);
}

// ---- call ---------------------------------------------------------------------------------------------

class direct_call : collective_call {
 public:
  direct_call(const call_request& request, copy_algorithm algorithm, const direct_buffers& buffers)
      : collective_call(request, algorithm), m_buffers(buffers) {}

  void issue();

 private:
  std::vector<block_transfer> list_transfers() const;

  const direct_buffers& m_buffers;
};

std::vector<block_transfer> direct_call::list_transfers() const {
  const bool is_push = m_algorithm == copy_algorithm::push;
  std::vector<block_transfer> transfers;
  for (int step = 1; step < m_resources.size; ++step) {
    const int peer = next_peer(step);
    const std::uint64_t bytes = bytes_to_copy(peer);
    if (bytes == 0) continue;
    std::byte* const peer_buffer = m_buffers.addresses[static_cast<std::size_t>(peer)];
    const std::byte* source = is_push ? m_send + m_blocks.outgoing_block(peer).offset : peer_buffer;
    std::byte* destination = is_push ? peer_buffer : m_recv + m_blocks.incoming_block(peer).offset;
    transfers.push_back({transfer_slot::direct, peer, source, destination, bytes});
  }
  return transfers;
}

void direct_call::issue() {
  begin(m_buffers.heap_position);
  command_batch& main = m_resources.main;
  if (m_buffers.needs_own_block_first)
    copy_own_block(main);
  else
    start_own_block();
  set_pending(main, transfer_slot::direct, 0);
  signal_ready(main, transfer_slot::direct, 0);
  record_progress();  // overlaps with the peers' signals
  fork_streams();
  copy_all(list_transfers());
  join_streams();
  if (m_has_local_copy) join_local();
  for (int step = 1; step < m_resources.size; ++step)
    if (const int peer = previous_peer(step); bytes_peer_copies(peer) > 0)
      main.wait_equal(m_resources.memory.pending(m_resources.rank, transfer_slot::direct, peer), 0);
}

}  // namespace

// In place, the root's buffer has a position that the other ranks cannot compute.
const char* unsupported_direct_reason(isthmus_collective collective) {
  const collective_row& row = row_of(collective);
  if (row.recv_ranks == buffer_ranks::root ||
      (row.send_ranks == buffer_ranks::root && row.send_extent != extent::count))
    return "gather and scatter have a buffer whose address only the root knows; use copy_engine:staged";
  if (row.is_reduction) return "reductions need the staging slots; use copy_engine:staged";
  return nullptr;
}

void find_direct_buffers(const isthmus_backend_context& context, const isthmus_operation& operation,
                         const block_map& blocks, copy_algorithm algorithm, direct_buffers& buffers) {
  buffers.is_valid = false;
  const auto range = direct_range(operation, blocks, algorithm);
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  if (!range || context.heap_find == nullptr ||
      context.heap_find(context.runtime, range->base, range->bytes, &block, &offset) == 0)
    return;
  buffers.addresses.assign(static_cast<std::size_t>(context.size), nullptr);
  for (int rank = 0; rank < context.size; ++rank) {
    const auto peer = static_cast<std::size_t>(rank);
    if (block.peers[rank] == nullptr) return;
    const std::uint64_t peer_offset =
        range->is_at_receive_offset ? blocks.incoming_block(rank).offset : range->offset;
    buffers.addresses[peer] = static_cast<std::byte*>(block.peers[rank]) + offset + peer_offset;
  }
  const auto* own =
      static_cast<const std::byte*>(operation.recv_buf) + blocks.incoming_block(context.rank).offset;
  buffers.needs_own_block_first = range->needs_own_block_first && operation.send_buf != own;
  buffers.heap_position = block.id * 0x9e3779b97f4a7c15u + offset * 2 + (range->is_at_receive_offset ? 1u : 0u);
  buffers.is_valid = true;
}

void issue_direct(const call_request& request, copy_algorithm algorithm, const direct_buffers& buffers) {
  direct_call(request, algorithm, buffers).issue();
}

}  // namespace isthmus::copy_engine
