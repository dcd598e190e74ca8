#include "backends/shm/channel.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/block_map.hpp"
#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// A cell's payload follows its header.
std::byte* payload_of(cell_header& cell) { return reinterpret_cast<std::byte*>(&cell) + sizeof(cell_header); }

struct fragment {
  std::uint64_t begin, bytes;
};

// Longer messages are not packed, and a packed cell holds at most this many bytes.
constexpr std::uint64_t max_packed_message_bytes = 1 << 10, max_packed_cell_bytes = 8 << 10;

std::uint64_t count_fragments(const cell_header& cell) {
  return (cell.bytes + cell_header::fragment_bytes - 1) / cell_header::fragment_bytes;
}

// Claims a fragment of a message that was sent by address, if any is left.
std::optional<fragment> claim_fragment(cell_header& cell) {
  const std::uint64_t fragments = count_fragments(cell);
  if (cell.claimed_fragments.load(std::memory_order_relaxed) >= fragments) return std::nullopt;
  const std::uint64_t index = cell.claimed_fragments.fetch_add(1, std::memory_order_relaxed);
  if (index >= fragments) return std::nullopt;
  const std::uint64_t begin = index * cell_header::fragment_bytes;
  return fragment{begin, std::min(cell_header::fragment_bytes, cell.bytes - begin)};
}

}  // namespace

channels::channels(node_group& group)
    : m_group(group), m_ends(channel_kinds * static_cast<std::size_t>(group.size())) {}

void channels::add_transfer(bool is_send, int peer, const void* buffer, std::uint64_t bytes) {
  if (bytes == 0) return;  // both sides know the length, so nothing is sent
  message_transfer transfer{};
  transfer.is_send = is_send;
  transfer.peer = peer;
  transfer.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
  transfer.bytes = bytes;
  m_transfers.push_back(transfer);
}

// Matches messages of this rank to itself in order. No data moves until all of them match.
void channels::match_self_messages() {
  m_self_messages.clear();
  std::size_t send_count = 0, receive_count = 0;
  for (message_transfer& each : m_transfers) {
    if (each.peer != m_group.rank()) continue;
    const std::size_t index = each.is_send ? send_count++ : receive_count++;
    if (m_self_messages.size() <= index) m_self_messages.resize(index + 1);
    (each.is_send ? m_self_messages[index].send : m_self_messages[index].receive) = &each;
  }
  for (const self_message& each : m_self_messages) {
    if (each.send != nullptr && each.receive != nullptr && each.send->bytes == each.receive->bytes) {
      each.send->is_complete = each.receive->is_complete = true;
      continue;
    }
    const message_transfer& unmatched = each.send != nullptr ? *each.send : *each.receive;
    const auto& context = m_group.context();
    throw operation_failure{context.fail(
        context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
        "issue a send to this rank and a recv of the same length in one group",
        "%s: a message of %llu bytes with this rank itself (%d) has no matching call in the group",
        unmatched.is_send ? "send" : "recv", static_cast<unsigned long long>(unmatched.bytes), unmatched.peer)};
  }
}

// Copies one message per call, so that peers are served between two messages. Returns false if no
// message is left.
bool channels::copy_next_self_message() {
  if (m_self_messages.empty()) return false;
  const self_message& last = m_self_messages.back();
  std::memmove(last.receive->buffer, last.send->buffer, last.send->bytes);
  m_self_messages.pop_back();
  return true;
}

void channels::run_messages(std::span<const isthmus_operation> operations) {
  m_transfers.clear();
  for (const isthmus_operation& each : operations)
    if (is_point_to_point(each.collective))
      add_peer_transfers(each.root, each, block_map(each, m_group.rank(), m_group.size()));
  if (m_transfers.empty()) return;
  match_self_messages();
  run_transfers(channel_kind::message);
}

// Adds the operation's transfers between this rank and a peer.
void channels::add_peer_transfers(int peer, const isthmus_operation& operation, const block_map& blocks) {
  const block out = blocks.outgoing_block(peer), in = blocks.incoming_block(peer);
  add_transfer(true, peer, static_cast<const std::byte*>(operation.send_buf) + out.offset, out.bytes);
  add_transfer(false, peer, static_cast<const std::byte*>(operation.recv_buf) + in.offset, in.bytes);
}

void channels::run_collective(const isthmus_operation& operation) {
  const block_map blocks(operation, m_group.rank(), m_group.size());
  const bool has_prerequisites = overwrites_unsent_data(operation);
  m_transfers.clear();
  for (int i = 0; i < m_group.size(); ++i) {
    const std::size_t send_index = m_transfers.size();
    add_peer_transfers((m_group.rank() + i) % m_group.size(), operation, blocks);
    if (!has_prerequisites) continue;
    for (std::size_t index = send_index; index < m_transfers.size(); ++index)
      m_transfers[index].is_in_place = true;
    if (m_transfers.size() == send_index + 2) m_transfers.back().prerequisite = send_index;
  }
  match_self_messages();
  run_transfers(channel_kind::collective);
}

void channels::make_queues() {
  constexpr std::size_t none = ~std::size_t{0};
  const auto size = static_cast<std::size_t>(m_group.size());
  m_queues.clear();
  m_queue_index.assign(2 * size, none);
  for (std::size_t i = 0; i < m_transfers.size(); ++i) {
    const message_transfer& each = m_transfers[i];
    if (each.is_complete) continue;  // a message to this rank itself
    std::size_t& queue = m_queue_index[static_cast<std::size_t>(each.peer) + (each.is_send ? size : 0)];
    if (queue == none) {
      queue = m_queues.size();
      m_queues.push_back({each.is_send, each.peer, i, i});
    } else {
      m_transfers[m_queues[queue].last].next = i;
      m_queues[queue].last = i;
    }
  }
}

// Progresses all transfers until they are complete.
void channels::run_transfers(channel_kind kind) {
  make_queues();
  waiter wait(m_group);
  for (;;) {
    bool has_progressed = false;
    m_pending_peers.clear();
    for (message_queue& each : m_queues) {
      if (each.first == message_transfer::no_transfer) continue;
      has_progressed |= progress_queue(kind, each);
      if (each.first != message_transfer::no_transfer) m_pending_peers.push_back(each.peer);
    }
    has_progressed |= copy_next_self_message();  // overlaps with the peers, which can already copy the buffers
    if (m_pending_peers.empty() && m_self_messages.empty()) return;
    if (has_progressed)
      wait.reset();
    else
      wait.pause(m_pending_peers);
  }
}

bool channels::progress_queue(channel_kind kind, message_queue& queue) {
  bool has_progressed = false;
  while (queue.first != message_transfer::no_transfer) {
    message_transfer& transfer = m_transfers[queue.first];
    has_progressed |= transfer.is_send ? send_cells(kind, queue) : receive_cells(kind, transfer);
    if (!transfer.is_complete) break;
    while (queue.first != message_transfer::no_transfer && m_transfers[queue.first].is_complete)
      queue.first = m_transfers[queue.first].next;
  }
  return has_progressed;
}

bool channels::send_cells(channel_kind kind, message_queue& queue) {
  message_transfer& transfer = m_transfers[queue.first];
  std::uint64_t& sent_cells = ends_of(kind, transfer.peer).sent_cells;
  const flag& acknowledged_cells = m_group.receiver(transfer.peer, kind, m_group.rank()).acknowledged;
  const std::uint64_t acknowledged = acknowledged_cells.load(std::memory_order_acquire);
  if (transfer.is_by_address) {
    transfer.is_complete = acknowledged >= sent_cells;
    return transfer.is_complete || push_fragment(kind, transfer);
  }
  const std::uint64_t previous = sent_cells;
  while (!transfer.is_complete && !transfer.is_by_address &&
         sent_cells < acknowledged + m_group.sizes().cells) {
    cell_header& cell = m_group.cell(m_group.rank(), kind, transfer.peer, sent_cells);
    // a long message is copied once, directly from the user's buffer
    transfer.is_by_address = !transfer.is_in_place && transfer.transferred_bytes == 0 &&
                             transfer.bytes > m_group.parameters().address_bytes &&
                             m_group.memory().is_accessible_by(transfer.peer, transfer.buffer);
    if (transfer.is_by_address)
      send_address(cell, transfer);
    else if (!send_packed(cell, queue))
      send_chunk(cell, transfer);
    cell.ready.store(++sent_cells, std::memory_order_release);
  }
  return sent_cells != previous;
}

void channels::send_address(cell_header& cell, message_transfer& transfer) {
  cell.message_count = 1;
  cell.message_bytes = cell.bytes = transfer.bytes;
  cell.address = transfer.buffer;
  m_group.memory().expose({transfer.buffer, transfer.bytes, false, false});
  cell.claimed_fragments.store(0, std::memory_order_relaxed);
  cell.pushed_fragments.store(0, std::memory_order_relaxed);
}

void channels::send_chunk(cell_header& cell, message_transfer& transfer) {
  cell.message_count = 1;
  cell.message_bytes = transfer.bytes;
  cell.address = nullptr;
  cell.bytes = std::min(m_group.sizes().cell_bytes, transfer.bytes - transfer.transferred_bytes);
  std::memcpy(payload_of(cell), transfer.buffer + transfer.transferred_bytes, cell.bytes);
  transfer.transferred_bytes += cell.bytes;
  transfer.is_complete = transfer.transferred_bytes == transfer.bytes;
}

// Longer messages are not packed, so that the receiver copies one cell while the sender fills the next.
bool channels::can_pack(const message_transfer& each) const {
  return each.bytes <= max_packed_message_bytes && each.bytes <= m_group.parameters().address_bytes;
}

// Packs the first message and its successors while they are short and fit. False: there is only one.
bool channels::send_packed(cell_header& cell, message_queue& queue) {
  const std::uint64_t capacity = std::min(m_group.sizes().cell_bytes, max_packed_cell_bytes);
  std::uint64_t messages = 0, bytes = 0;
  for (std::size_t i = queue.first; i != message_transfer::no_transfer; i = m_transfers[i].next) {
    const message_transfer& each = m_transfers[i];
    if (!can_pack(each) || bytes + each.bytes + (messages + 1) * sizeof(std::uint64_t) > capacity) break;
    ++messages;
    bytes += each.bytes;
  }
  if (messages < 2) return false;
  cell.message_count = messages;
  cell.address = nullptr;
  auto* const lengths = reinterpret_cast<std::uint64_t*>(payload_of(cell));
  std::byte* to = payload_of(cell) + messages * sizeof(std::uint64_t);
  std::size_t i = queue.first;
  for (std::uint64_t m = 0; m < messages; ++m, i = m_transfers[i].next) {
    message_transfer& each = m_transfers[i];
    lengths[m] = each.bytes;
    std::memcpy(to, each.buffer, each.bytes);
    to += each.bytes;
    each.is_complete = true;
  }
  return true;
}

// If the receiver has offered its buffer, the otherwise idle sender also copies fragments.
bool channels::push_fragment(channel_kind kind, message_transfer& transfer) {
  const std::uint64_t sent_cells = ends_of(kind, transfer.peer).sent_cells;
  const receiver_state& receiver = m_group.receiver(transfer.peer, kind, m_group.rank());
  if (receiver.offered_cell.load(std::memory_order_acquire) != sent_cells) return false;
  cell_header& cell = m_group.cell(m_group.rank(), kind, transfer.peer, sent_cells - 1);
  const auto next_fragment = claim_fragment(cell);
  if (!next_fragment) return false;
  // From here on the receiver waits for the fragment and keeps the offer valid. If it expects a different
  // length, it reports the mismatch.
  if (receiver.bytes != transfer.bytes) return false;
  const write_scope scope = m_group.begin_remote_writes();
  m_group.poll_abort();
  m_group.memory().write_to(transfer.peer, transfer.buffer + next_fragment->begin,
                            receiver.buffer + next_fragment->begin, next_fragment->bytes);
  cell.pushed_fragments.fetch_add(1, std::memory_order_release);
  return true;
}

// Offers the receive buffer to the sender of a long message. Skipped if ranks outnumber cores, because a sender
// that loses its core within a fragment would delay the receiver.
void channels::offer_buffer(channel_kind kind, message_transfer& transfer) {
  if (transfer.is_offered) return;
  transfer.is_offered = true;
  if (transfer.bytes < 2 * cell_header::fragment_bytes ||
      transfer.prerequisite != message_transfer::no_prerequisite || m_group.parameters().spins == 0 ||
      !m_group.memory().is_accessible_by(transfer.peer, transfer.buffer))
    return;
  receiver_state& receiver = m_group.receiver(m_group.rank(), kind, transfer.peer);
  receiver.buffer = transfer.buffer;
  receiver.bytes = transfer.bytes;
  m_group.memory().expose({transfer.buffer, transfer.bytes, true, false});
  receiver.offered_cell.store(ends_of(kind, transfer.peer).received_cells + 1, std::memory_order_release);
}

// Copies a fragment from the sender's buffer, if any is left. False: everything has arrived, or the sender is
// still copying the fragments that it claimed.
bool channels::pull_fragment(message_transfer& transfer, cell_header& cell) {
  const auto next_fragment = claim_fragment(cell);
  if (next_fragment) {
    m_group.memory().read_from(transfer.peer, transfer.buffer + next_fragment->begin,
                               cell.address + next_fragment->begin, next_fragment->bytes);
    transfer.transferred_bytes += next_fragment->bytes;
    ++transfer.pulled_fragments;
  }
  if (transfer.pulled_fragments + cell.pushed_fragments.load(std::memory_order_acquire) ==
      count_fragments(cell))
    transfer.transferred_bytes = transfer.bytes;
  return next_fragment && transfer.transferred_bytes < transfer.bytes;
}

// Receives the next message of a packed cell. The receiver may receive the cell in one or several calls.
void channels::receive_packed(message_transfer& transfer, cell_header& cell, channel_ends& ends) {
  const auto* const lengths = reinterpret_cast<const std::uint64_t*>(payload_of(cell));
  check_length(transfer, lengths[ends.unpacked_messages]);
  const std::byte* const begin = payload_of(cell) + cell.message_count * sizeof(std::uint64_t);
  std::memcpy(transfer.buffer, begin + ends.unpacked_bytes, transfer.bytes);
  transfer.is_complete = true;
  ends.unpacked_bytes += transfer.bytes;
  ++ends.unpacked_messages;
}

bool channels::receive_cells(channel_kind kind, message_transfer& transfer) {
  channel_ends& ends = ends_of(kind, transfer.peer);
  std::uint64_t& received_cells = ends.received_cells;
  flag& acknowledged_cells = m_group.receiver(m_group.rank(), kind, transfer.peer).acknowledged;
  offer_buffer(kind, transfer);
  const std::uint64_t previous = received_cells;
  while (!transfer.is_complete) {
    cell_header& cell = m_group.cell(transfer.peer, kind, m_group.rank(), received_cells);
    if (cell.ready.load(std::memory_order_acquire) != received_cells + 1) break;
    if (cell.message_count > 1) {
      receive_packed(transfer, cell, ends);
      if (ends.unpacked_messages < cell.message_count) return true;
      ends.unpacked_messages = ends.unpacked_bytes = 0;
      acknowledged_cells.store(++received_cells, std::memory_order_release);
      return true;
    }
    check_length(transfer, cell.message_bytes);
    const std::uint64_t end = cell.address != nullptr ? cell.bytes : transfer.transferred_bytes + cell.bytes;
    if (transfer.prerequisite != message_transfer::no_prerequisite &&
        m_transfers[transfer.prerequisite].transferred_bytes < end)
      break;
    if (cell.address != nullptr) {
      if (pull_fragment(transfer, cell)) return true;
      if (transfer.transferred_bytes < transfer.bytes) break;
      m_group.poll_abort();  // data read from a sender that aborted is undefined
    } else {
      std::memcpy(transfer.buffer + transfer.transferred_bytes, payload_of(cell), cell.bytes);
      transfer.transferred_bytes += cell.bytes;
    }
    transfer.is_complete = transfer.transferred_bytes == transfer.bytes;
    acknowledged_cells.store(++received_cells, std::memory_order_release);
  }
  return received_cells != previous;
}

void channels::check_length(const message_transfer& expected, std::uint64_t sent_bytes) {
  if (sent_bytes == expected.bytes) return;
  const auto& context = m_group.context();
  throw operation_failure{context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                                       "use the same counts and datatypes on both sides, in the same order",
                                       "rank %d sent %llu bytes where rank %d expects %llu", expected.peer,
                                       static_cast<unsigned long long>(sent_bytes), m_group.rank(),
                                       static_cast<unsigned long long>(expected.bytes))};
}

}  // namespace isthmus::shm
