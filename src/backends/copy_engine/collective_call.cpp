#include "backends/copy_engine/collective_call.hpp"

#include <algorithm>

namespace isthmus::copy_engine {
namespace {

// Finalizer of splitmix64, in which every input bit affects every output bit.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::uint64_t hash_combine(std::uint64_t hash, std::uint64_t value) {
  return mix(hash * 0x9e3779b97f4a7c15u + value + 1);
}

// Bytes that this rank receives from its peers.
std::uint64_t incoming_bytes(const block_map& blocks) {
  std::uint64_t bytes = 0;
  for (int source = 0; source < blocks.size; ++source)
    if (source != blocks.rank) bytes += blocks.incoming_block(source).bytes;
  return bytes;
}

}  // namespace

rank_resources::rank_resources(device_driver& d, int own_device, int own_rank, int ranks, const settings& s)
    : driver(d),
      device(own_device),
      rank(own_rank),
      size(ranks),
      options(s),
      main(d, own_device, s.batch_bytes),
      local_copies(d, own_device, stream_priority::normal, s.batch_bytes),
      combiner(d, own_device, stream_priority::raised, s.batch_bytes),
      fork_event(d, own_device),
      fetch_event(d, own_device),
      slot_event(d, own_device),
      progress(d, alignment),
      kernels(d, own_device, s.reduction_blocks),
      slot_uses(static_cast<std::size_t>(ranks), 0) {
  const int streams = s.streams == 0 ? ranks - 1 : std::min(s.streams, ranks - 1);
  for (int i = 1; i < streams; ++i)
    peer_streams.emplace_back(d, own_device, stream_priority::normal, s.batch_bytes);
}

collective_call::collective_call(const call_request& request, copy_algorithm algorithm)
    : m_request(request),
      m_resources(request.resources),
      m_blocks(request.blocks),
      m_send(static_cast<const std::byte*>(request.operation.send_buf)),
      m_recv(static_cast<std::byte*>(request.operation.recv_buf)),
      m_algorithm(algorithm),
      m_waits_for_all(incoming_bytes(request.blocks) <= request.resources.options.wait_all_bytes) {}

void collective_call::begin(std::uint64_t position) {
  m_position = position;
  call_record& record = m_request.record;
  record.is_staged = m_algorithm == copy_algorithm::staged || m_algorithm == copy_algorithm::reduce;
  record.collective = m_request.operation.collective;
  record.datatype = m_request.operation.datatype;
  record.count = m_request.operation.count;
  record.tags.assign(static_cast<std::size_t>(m_resources.size), 0);
  for (int peer = 0; peer < m_resources.size; ++peer)
    if (const std::uint64_t bytes = bytes_to_copy(peer); bytes > 0)
      record.tags[static_cast<std::size_t>(peer)] = tag_of(bytes);
  m_request.log.add(record, m_request.is_captured);
}

// Returns a hash of everything that both ends of a transfer must agree on. Never 0, which means "no signal".
std::uint32_t collective_call::tag_of(std::uint64_t bytes) const {
  const std::uint64_t operation_code = static_cast<std::uint64_t>(m_request.operation.root) << 16 |
                                       static_cast<std::uint64_t>(m_request.operation.collective) << 2 |
                                       static_cast<std::uint64_t>(m_algorithm);
  return static_cast<std::uint32_t>(
             hash_combine(hash_combine(hash_combine(0, operation_code), m_position), bytes) >> 32) |
         1u;
}

std::uint64_t collective_call::bytes_peer_copies(int peer) const {
  if (peer == m_resources.rank) return 0;
  return (sources_copy() ? m_blocks.incoming_block(peer) : m_blocks.outgoing_block(peer)).bytes;
}

std::uint64_t collective_call::bytes_to_copy(int peer) const {
  if (peer == m_resources.rank) return 0;
  return (sources_copy() ? m_blocks.outgoing_block(peer) : m_blocks.incoming_block(peer)).bytes;
}

// ---- streams ------------------------------------------------------------------------------------------

command_batch& collective_call::batch_for(int peer) {
  if (m_waits_for_all || m_uses_one_stream || m_resources.peer_streams.empty()) return m_resources.main;
  const int step = (peer - m_resources.rank + m_resources.size) % m_resources.size;
  const auto stream_index = static_cast<std::size_t>(step - 1) % (m_resources.peer_streams.size() + 1);
  return stream_index == 0 ? m_resources.main : m_resources.peer_streams[stream_index - 1].commands;
}

void collective_call::fork_streams() {
  if (m_waits_for_all || m_uses_one_stream) return;
  for (side_stream& stream : m_resources.peer_streams)
    stream.commands.follow(m_resources.main, m_resources.fork_event);
}

void collective_call::join_streams() {
  if (m_waits_for_all || m_uses_one_stream) return;
  for (side_stream& stream : m_resources.peer_streams)
    m_resources.main.follow(stream.commands, stream.join_event);
}

void collective_call::copy_own_block(command_batch& batch) {
  const block from = m_blocks.outgoing_block(m_resources.rank), to = m_blocks.incoming_block(m_resources.rank);
  if (from.bytes > 0 && to.bytes > 0) batch.copy_local(m_recv + to.offset, m_send + from.offset, from.bytes);
}

// Copies this rank's own block on a separate stream, concurrently with the transfers. This was the fastest
// variant at every size. In-place calls have nothing to copy.
void collective_call::start_own_block() {
  const block from = m_blocks.outgoing_block(m_resources.rank), to = m_blocks.incoming_block(m_resources.rank);
  if (from.bytes == 0 || to.bytes == 0 || m_recv + to.offset == m_send + from.offset) return;
  m_has_local_copy = true;
  command_batch& local = m_resources.local_copies.commands;
  local.follow(m_resources.main, m_resources.fork_event);
  copy_own_block(local);
  local.flush();
}

// ---- flags ------------------------------------------------------------------------------------------

void collective_call::set_pending(command_batch& batch, transfer_slot slot, std::uint64_t offset) {
  for (int step = 1; step < m_resources.size; ++step)
    if (const int peer = previous_peer(step); bytes_peer_copies(peer) > offset)
      batch.write(m_resources.memory.pending(m_resources.rank, slot, peer), 1);
}

void collective_call::signal_ready(command_batch& batch, transfer_slot slot, std::uint64_t offset) {
  for (int step = 1; step < m_resources.size; ++step)
    if (const int peer = previous_peer(step); bytes_peer_copies(peer) > offset)
      batch.write(m_resources.memory.ready(peer, slot, m_resources.rank), tag_of(bytes_peer_copies(peer)));
}

void collective_call::wait_acknowledged(command_batch& batch, transfer_slot slot) {
  for (int step = 1; step < m_resources.size; ++step)
    batch.wait_equal(m_resources.memory.pending(m_resources.rank, slot, previous_peer(step)), 0);
}

// Flags are cleared only after all of them have arrived: the watchdog uses them to identify missing ranks.
void collective_call::wait_ready(command_batch& batch, std::span<const block_transfer> transfers) {
  for (const block_transfer& transfer : transfers)
    batch.wait_equal(m_resources.memory.ready(m_resources.rank, transfer.slot, transfer.peer),
                     m_request.record.tags[static_cast<std::size_t>(transfer.peer)]);
  for (const block_transfer& transfer : transfers)
    batch.write(m_resources.memory.ready(m_resources.rank, transfer.slot, transfer.peer), 0);
}

void collective_call::acknowledge(command_batch& batch, const block_transfer& transfer) {
  batch.write(m_resources.memory.pending(transfer.peer, transfer.slot, m_resources.rank), 0);
}

void collective_call::copy_all(const std::vector<block_transfer>& transfers) {
  if (m_waits_for_all) {
    wait_ready(m_resources.main, transfers);
    for (const block_transfer& transfer : transfers)
      m_resources.main.copy(transfer.destination, transfer.source, transfer.bytes);
    for (const block_transfer& transfer : transfers) acknowledge(m_resources.main, transfer);
    return;
  }
  for (const block_transfer& transfer : transfers) {
    command_batch& batch = batch_for(transfer.peer);
    wait_ready(batch, {&transfer, 1});
    batch.copy(transfer.destination, transfer.source, transfer.bytes);
    acknowledge(batch, transfer);
  }
}

}  // namespace isthmus::copy_engine
