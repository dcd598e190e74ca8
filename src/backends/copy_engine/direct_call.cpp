// Algorithms zero_copy and push: transfers between user buffers in the symmetric heap, without staging.
#include "backends/copy_engine/collective_call.hpp"

namespace isthmus::copy_engine {
namespace {

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

void issue_direct(const call_request& request, copy_algorithm algorithm, const direct_buffers& buffers) {
  direct_call(request, algorithm, buffers).issue();
}

}  // namespace isthmus::copy_engine
