#include "backends/copy_engine/call.hpp"

#include <algorithm>

namespace isthmus::copy_engine {
namespace {

// The finaliser of splitmix64: every bit of the input reaches every bit of the result.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::uint64_t joined(std::uint64_t before, std::uint64_t value) {
  return mixed(before * 0x9e3779b97f4a7c15u + value + 1);
}

// What comes from others.
std::uint64_t bytes_in(const block_map& blocks) {
  std::uint64_t bytes = 0;
  for (int source = 0; source < blocks.size; ++source)
    if (source != blocks.rank) bytes += blocks.incoming_block(source).bytes;
  return bytes;
}

}  // namespace

resources::resources(device_driver& d, int own_device, int own_rank, int ranks, const settings& s)
    : driver(d),
      device(own_device),
      rank(own_rank),
      size(ranks),
      options(s),
      caller(d, own_device, s.batch_bytes),
      local(d, own_device, stream_priority::normal, s.batch_bytes),
      combiner(d, own_device, stream_priority::raised, s.batch_bytes),
      forked(d, own_device),
      started(d, own_device),
      slot_ready(d, own_device),
      progress(d, alignment),
      kernels(d, own_device, s.reduction_blocks),
      slot_uses(static_cast<std::size_t>(ranks), 0) {
  const int streams = s.streams == 0 ? ranks - 1 : std::min(s.streams, ranks - 1);
  for (int i = 1; i < streams; ++i) beside.emplace_back(d, own_device, stream_priority::normal, s.batch_bytes);
}

collective_call::collective_call(const call_request& request, copy_algorithm algorithm)
    : m_request(request),
      m_own(request.own),
      m_blocks(request.blocks),
      m_send(static_cast<const std::byte*>(request.operation.send_buf)),
      m_recv(static_cast<std::byte*>(request.operation.recv_buf)),
      m_algorithm(algorithm),
      m_together(bytes_in(request.blocks) <= request.own.options.wait_all_bytes) {}

void collective_call::begin(std::uint64_t position) {
  m_position = position;
  call_record& record = m_request.record;
  record.staged = m_algorithm == copy_algorithm::staged || m_algorithm == copy_algorithm::reduce;
  record.collective = m_request.operation.collective;
  record.datatype = m_request.operation.datatype;
  record.count = m_request.operation.count;
  record.tags.assign(static_cast<std::size_t>(m_own.size), 0);
  for (int peer = 0; peer < m_own.size; ++peer)
    if (const std::uint64_t bytes = bytes_copied_for(peer); bytes > 0)
      record.tags[static_cast<std::size_t>(peer)] = tag_of(bytes);
  m_request.log.add(record, m_request.captured);
}

// All that both ends of a transfer know and must agree on. Never 0, which means "nothing here".
std::uint32_t collective_call::tag_of(std::uint64_t bytes) const {
  const std::uint64_t kind = static_cast<std::uint64_t>(m_request.operation.root) << 16 |
                             static_cast<std::uint64_t>(m_request.operation.collective) << 2 |
                             static_cast<std::uint64_t>(m_algorithm);
  return static_cast<std::uint32_t>(joined(joined(joined(0, kind), m_position), bytes) >> 32) | 1u;
}

std::uint64_t collective_call::bytes_copied_by(int peer) const {
  if (peer == m_own.rank) return 0;
  return (sources_copy() ? m_blocks.incoming_block(peer) : m_blocks.outgoing_block(peer)).bytes;
}

std::uint64_t collective_call::bytes_copied_for(int peer) const {
  if (peer == m_own.rank) return 0;
  return (sources_copy() ? m_blocks.outgoing_block(peer) : m_blocks.incoming_block(peer)).bytes;
}

// ---- streams ------------------------------------------------------------------------------------------

command_batch& collective_call::batch_for(int peer) {
  if (m_together || m_one_stream || m_own.beside.empty()) return m_own.caller;
  const int step = (peer - m_own.rank + m_own.size) % m_own.size;
  const auto turn = static_cast<std::size_t>(step - 1) % (m_own.beside.size() + 1);
  return turn == 0 ? m_own.caller : m_own.beside[turn - 1].commands;
}

void collective_call::fork_streams() {
  if (m_together || m_one_stream) return;
  for (side_stream& stream : m_own.beside) stream.commands.follow(m_own.caller, m_own.forked);
}

void collective_call::join_streams() {
  if (m_together || m_one_stream) return;
  for (side_stream& stream : m_own.beside) m_own.caller.follow(stream.commands, stream.joined);
}

void collective_call::copy_own_block(command_batch& by) {
  const block from = m_blocks.outgoing_block(m_own.rank), to = m_blocks.incoming_block(m_own.rank);
  if (from.bytes > 0 && to.bytes > 0) by.copy_here(m_recv + to.offset, m_send + from.offset, from.bytes);
}

// Beside everything else: that was fastest at every size, and costs nothing in place.
void collective_call::start_own_block() {
  const block from = m_blocks.outgoing_block(m_own.rank), to = m_blocks.incoming_block(m_own.rank);
  if (from.bytes == 0 || to.bytes == 0 || m_recv + to.offset == m_send + from.offset) return;
  m_own_beside = true;
  command_batch& local = m_own.local.commands;
  local.follow(m_own.caller, m_own.forked);
  copy_own_block(local);
  local.flush();
}

// ---- flags ------------------------------------------------------------------------------------------

void collective_call::set_pending(command_batch& by, transfer_slot slot, std::uint64_t beyond) {
  for (int step = 1; step < m_own.size; ++step)
    if (const int peer = served_at(step); bytes_copied_by(peer) > beyond)
      by.write(m_own.memory.pending(m_own.rank, slot, peer), 1);
}

void collective_call::signal_ready(command_batch& by, transfer_slot slot, std::uint64_t beyond) {
  for (int step = 1; step < m_own.size; ++step)
    if (const int peer = served_at(step); bytes_copied_by(peer) > beyond)
      by.write(m_own.memory.ready(peer, slot, m_own.rank), tag_of(bytes_copied_by(peer)));
}

void collective_call::wait_acknowledged(command_batch& by, transfer_slot slot) {
  for (int step = 1; step < m_own.size; ++step)
    by.wait_equal(m_own.memory.pending(m_own.rank, slot, served_at(step)), 0);
}

// No flag is cleared before all have come: the watchdog tells by them who is missing.
void collective_call::wait_ready(command_batch& by, std::span<const block_transfer> transfers) {
  for (const block_transfer& transfer : transfers)
    by.wait_equal(m_own.memory.ready(m_own.rank, transfer.slot, transfer.peer),
                  m_request.record.tags[static_cast<std::size_t>(transfer.peer)]);
  for (const block_transfer& transfer : transfers) by.write(m_own.memory.ready(m_own.rank, transfer.slot, transfer.peer), 0);
}

void collective_call::acknowledge(command_batch& by, const block_transfer& transfer) {
  by.write(m_own.memory.pending(transfer.peer, transfer.slot, m_own.rank), 0);
}

void collective_call::copy_all(const std::vector<block_transfer>& transfers) {
  if (m_together) {
    wait_ready(m_own.caller, transfers);
    for (const block_transfer& transfer : transfers) m_own.caller.copy(transfer.to, transfer.from, transfer.bytes);
    for (const block_transfer& transfer : transfers) acknowledge(m_own.caller, transfer);
    return;
  }
  for (const block_transfer& transfer : transfers) {
    command_batch& by = batch_for(transfer.peer);
    wait_ready(by, {&transfer, 1});
    by.copy(transfer.to, transfer.from, transfer.bytes);
    acknowledge(by, transfer);
  }
}

}  // namespace isthmus::copy_engine
