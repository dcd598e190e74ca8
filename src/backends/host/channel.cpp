#include "backends/host/channel.hpp"

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

struct part {
  std::uint64_t begin, bytes;
};

// In one call with one peer: longer messages travel alone, and a cell takes so much (docs/notes:
// host_messages).
constexpr std::uint64_t most_shared_bytes = 1 << 10, most_together_bytes = 8 << 10;

std::uint64_t count_parts(const cell_header& cell) {
  return (cell.bytes + cell_header::fragment_bytes - 1) / cell_header::fragment_bytes;
}

// A part of a message that was sent as an address, if one is left.
std::optional<part> take_part(cell_header& cell) {
  const std::uint64_t parts = count_parts(cell);
  if (cell.claimed_fragments.load(std::memory_order_relaxed) >= parts) return std::nullopt;
  const std::uint64_t taken = cell.claimed_fragments.fetch_add(1, std::memory_order_relaxed);
  if (taken >= parts) return std::nullopt;
  const std::uint64_t begin = taken * cell_header::fragment_bytes;
  return part{begin, std::min(cell_header::fragment_bytes, cell.bytes - begin)};
}

}  // namespace

channels::channels(node_group& group) : m_group(group), m_ends(channel_kinds * static_cast<std::size_t>(group.size())) {}

void channels::add(bool sends, int peer, const void* buffer, std::uint64_t bytes) {
  if (bytes == 0) return;  // both sides know, so there is nothing to say
  transfer added{};
  added.sends = sends;
  added.peer = peer;
  added.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
  added.bytes = bytes;
  m_transfers.push_back(added);
}

// Messages to oneself: the first send meets the first recv, and so on. Nothing moves before all match.
void channels::pair_self() {
  m_own.clear();
  std::size_t sends = 0, receives = 0;
  for (transfer& each : m_transfers) {
    if (each.peer != m_group.rank()) continue;
    const std::size_t index = each.sends ? sends++ : receives++;
    if (m_own.size() <= index) m_own.resize(index + 1);
    (each.sends ? m_own[index].send : m_own[index].receive) = &each;
  }
  for (const own_message& each : m_own) {
    if (each.send != nullptr && each.receive != nullptr && each.send->bytes == each.receive->bytes) {
      each.send->complete = each.receive->complete = true;
      continue;
    }
    const transfer& lonely = each.send != nullptr ? *each.send : *each.receive;
    const auto& context = m_group.context();
    throw operation_failure{context.fail(context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                               "put a send to oneself and its recv, of equal length, into one group",
                               "a %s of %llu bytes with the own rank %d has no counterpart in its group",
                               lonely.sends ? "send" : "recv", static_cast<unsigned long long>(lonely.bytes),
                               lonely.peer)};
  }
}

// One of them, and says whether there was one: between two looks at the peers, who wait for answers.
bool channels::copy_one_of_own() {
  if (m_own.empty()) return false;
  const own_message& last = m_own.back();
  std::memmove(last.receive->buffer, last.send->buffer, last.send->bytes);
  m_own.pop_back();
  return true;
}

void channels::run_messages(std::span<const isthmus_operation> operations) {
  m_transfers.clear();
  for (const isthmus_operation& each : operations)
    if (is_point_to_point(each.collective)) add_with(each.root, each, block_map(each, m_group.rank(), m_group.size()));
  if (m_transfers.empty()) return;
  pair_self();
  progress_all(channel_kind::message);
}

// What the operation moves between this rank and a peer.
void channels::add_with(int peer, const isthmus_operation& operation, const block_map& blocks) {
  const block out = blocks.outgoing_block(peer), in = blocks.incoming_block(peer);
  add(true, peer, static_cast<const std::byte*>(operation.send_buf) + out.offset, out.bytes);
  add(false, peer, static_cast<const std::byte*>(operation.recv_buf) + in.offset, in.bytes);
}

void channels::run_collective(const isthmus_operation& operation) {
  const block_map blocks(operation, m_group.rank(), m_group.size());
  const bool gated = overwrites_unsent_data(operation);
  m_transfers.clear();
  for (int i = 0; i < m_group.size(); ++i) {
    const std::size_t sent = m_transfers.size();
    add_with((m_group.rank() + i) % m_group.size(), operation, blocks);
    if (!gated) continue;
    for (std::size_t added = sent; added < m_transfers.size(); ++added) m_transfers[added].in_place = true;
    if (m_transfers.size() == sent + 2) m_transfers.back().gate = sent;
  }
  pair_self();
  progress_all(channel_kind::collective);
}

void channels::make_queues() {
  constexpr std::size_t none = ~std::size_t{0};
  const auto size = static_cast<std::size_t>(m_group.size());
  m_queues.clear();
  m_queue_of.assign(2 * size, none);
  for (std::size_t i = 0; i < m_transfers.size(); ++i) {
    const transfer& each = m_transfers[i];
    if (each.complete) continue;  // with oneself
    std::size_t& queue = m_queue_of[static_cast<std::size_t>(each.peer) + (each.sends ? size : 0)];
    if (queue == none) {
      queue = m_queues.size();
      m_queues.push_back({each.sends, each.peer, i, i});
    } else {
      m_transfers[m_queues[queue].last].next = i;
      m_queues[queue].last = i;
    }
  }
}

// Moves whatever can move until all is complete.
void channels::progress_all(channel_kind kind) {
  make_queues();
  waiter wait(m_group);
  for (;;) {
    bool moved = false;
    m_awaited.clear();
    for (transfer_queue& each : m_queues) {
      if (each.first == transfer::no_transfer) continue;
      moved |= progress(kind, each);
      if (each.first != transfer::no_transfer) m_awaited.push_back(each.peer);
    }
    moved |= copy_one_of_own();  // while the peers, which know by now what they may copy, do so
    if (m_awaited.empty() && m_own.empty()) return;
    if (moved)
      wait.reset();
    else
      wait.pause(m_awaited);
  }
}

bool channels::progress(channel_kind kind, transfer_queue& of) {
  bool moved = false;
  while (of.first != transfer::no_transfer) {
    transfer& moving = m_transfers[of.first];
    moved |= moving.sends ? send_cells(kind, of) : receive_cells(kind, moving);
    if (!moving.complete) break;
    while (of.first != transfer::no_transfer && m_transfers[of.first].complete)
      of.first = m_transfers[of.first].next;
  }
  return moved;
}

bool channels::send_cells(channel_kind kind, transfer_queue& of) {
  transfer& moving = m_transfers[of.first];
  std::uint64_t& sent = ends_of(kind, moving.peer).sent;
  const flag& taken = m_group.receiver(moving.peer, kind, m_group.rank()).acknowledged;
  const std::uint64_t acknowledged = taken.load(std::memory_order_acquire);
  if (moving.by_address) {
    moving.complete = acknowledged >= sent;
    return moving.complete || push_part(kind, moving);
  }
  const std::uint64_t before = sent;
  while (!moving.complete && !moving.by_address && sent < acknowledged + m_group.sizes().cells) {
    cell_header& cell = m_group.cell(m_group.rank(), kind, moving.peer, sent);
    // a long message is copied once, out of the buffer itself
    moving.by_address = !moving.in_place && moving.moved == 0 && moving.bytes > m_group.tuned().address_bytes &&
                        m_group.is_accessible_by(moving.peer, moving.buffer);
    if (moving.by_address)
      send_address(cell, moving);
    else if (!send_together(cell, of))
      send_piece(cell, moving);
    cell.ready.store(++sent, std::memory_order_release);
  }
  return sent != before;
}

void channels::send_address(cell_header& cell, transfer& moving) {
  cell.messages = 1;
  cell.message_bytes = cell.bytes = moving.bytes;
  cell.address = moving.buffer;
  cell.claimed_fragments.store(0, std::memory_order_relaxed);
  cell.pushed_fragments.store(0, std::memory_order_relaxed);
}

void channels::send_piece(cell_header& cell, transfer& moving) {
  cell.messages = 1;
  cell.message_bytes = moving.bytes;
  cell.address = nullptr;
  cell.bytes = std::min(m_group.sizes().cell_bytes, moving.bytes - moving.moved);
  std::memcpy(payload_of(cell), moving.buffer + moving.moved, cell.bytes);
  moving.moved += cell.bytes;
  moving.complete = moving.moved == moving.bytes;
}

// Longer ones travel alone: the receiver copies one while the sender fills the next cell.
bool channels::can_share_cell(const transfer& each) const {
  return each.bytes <= most_shared_bytes && each.bytes <= m_group.tuned().address_bytes;
}

// The first message and those behind it, as far as they are short and fit. False where it is alone.
bool channels::send_together(cell_header& cell, transfer_queue& of) {
  const std::uint64_t room = std::min(m_group.sizes().cell_bytes, most_together_bytes);
  std::uint64_t messages = 0, bytes = 0;
  for (std::size_t i = of.first; i != transfer::no_transfer; i = m_transfers[i].next) {
    const transfer& each = m_transfers[i];
    if (!can_share_cell(each) || bytes + each.bytes + (messages + 1) * sizeof(std::uint64_t) > room) break;
    ++messages;
    bytes += each.bytes;
  }
  if (messages < 2) return false;
  cell.messages = messages;
  cell.address = nullptr;
  auto* const lengths = reinterpret_cast<std::uint64_t*>(payload_of(cell));
  std::byte* to = payload_of(cell) + messages * sizeof(std::uint64_t);
  std::size_t i = of.first;
  for (std::uint64_t m = 0; m < messages; ++m, i = m_transfers[i].next) {
    transfer& each = m_transfers[i];
    lengths[m] = each.bytes;
    std::memcpy(to, each.buffer, each.bytes);
    to += each.bytes;
    each.complete = true;
  }
  return true;
}

// The sender has nothing else to do than to copy a part itself, where the receiver allows it.
bool channels::push_part(channel_kind kind, transfer& moving) {
  const std::uint64_t sent = ends_of(kind, moving.peer).sent;
  const receiver_state& receiver = m_group.receiver(moving.peer, kind, m_group.rank());
  if (receiver.offered.load(std::memory_order_acquire) != sent) return false;
  cell_header& cell = m_group.cell(m_group.rank(), kind, moving.peer, sent - 1);
  const auto mine = take_part(cell);
  if (!mine) return false;
  // from here on the receiver waits for the part, and what it offers stays; if it expects another length, it
  // says so
  if (receiver.bytes != moving.bytes) return false;
  const write_window window = m_group.open_write_window();
  m_group.poll_abort();
  m_group.write_to(moving.peer, moving.buffer + mine->begin, receiver.buffer + mine->begin, mine->bytes);
  cell.pushed_fragments.fetch_add(1, std::memory_order_release);
  return true;
}

// Tells the sender where it may write, if the message is long. Not where ranks outnumber the cores: a sender
// that loses its core within a part would keep the receiver waiting.
void channels::offer(channel_kind kind, transfer& moving) {
  if (moving.offered) return;
  moving.offered = true;
  if (moving.bytes < 2 * cell_header::fragment_bytes || moving.gate != transfer::no_gate ||
      m_group.tuned().spins == 0 || !m_group.is_accessible_by(moving.peer, moving.buffer))
    return;
  receiver_state& own = m_group.receiver(m_group.rank(), kind, moving.peer);
  own.buffer = moving.buffer;
  own.bytes = moving.bytes;
  m_group.expose({moving.buffer, moving.bytes, false});
  own.offered.store(ends_of(kind, moving.peer).received + 1, std::memory_order_release);
}

// Copies a part out of the sender's buffer, if one is left. False when there is nothing to come back for at
// once: all is here, or the sender still copies what it took.
bool channels::pull_part(transfer& moving, cell_header& cell) {
  const auto mine = take_part(cell);
  if (mine) {
    m_group.read_from(moving.peer, moving.buffer + mine->begin, cell.address + mine->begin, mine->bytes);
    moving.moved += mine->bytes;
    ++moving.pulled;
  }
  if (moving.pulled + cell.pushed_fragments.load(std::memory_order_acquire) == count_parts(cell))
    moving.moved = moving.bytes;
  return mine && moving.moved < moving.bytes;
}

// The next of a cell of several messages, which the receiver may take in one call or in several.
void channels::receive_one_of_several(transfer& moving, cell_header& cell, ends& own) {
  const auto* const lengths = reinterpret_cast<const std::uint64_t*>(payload_of(cell));
  check_message(moving, lengths[own.unpacked]);
  const std::byte* const begin = payload_of(cell) + cell.messages * sizeof(std::uint64_t);
  std::memcpy(moving.buffer, begin + own.unpacked_bytes, moving.bytes);
  moving.complete = true;
  own.unpacked_bytes += moving.bytes;
  ++own.unpacked;
}

bool channels::receive_cells(channel_kind kind, transfer& moving) {
  ends& own = ends_of(kind, moving.peer);
  std::uint64_t& received = own.received;
  flag& taken = m_group.receiver(m_group.rank(), kind, moving.peer).acknowledged;
  offer(kind, moving);
  const std::uint64_t before = received;
  while (!moving.complete) {
    cell_header& cell = m_group.cell(moving.peer, kind, m_group.rank(), received);
    if (cell.ready.load(std::memory_order_acquire) != received + 1) break;
    if (cell.messages > 1) {
      receive_one_of_several(moving, cell, own);
      if (own.unpacked < cell.messages) return true;
      own.unpacked = own.unpacked_bytes = 0;
      taken.store(++received, std::memory_order_release);
      return true;
    }
    check_message(moving, cell.message_bytes);
    const std::uint64_t end = cell.address != nullptr ? cell.bytes : moving.moved + cell.bytes;
    if (moving.gate != transfer::no_gate && m_transfers[moving.gate].moved < end) break;
    if (cell.address != nullptr) {
      if (pull_part(moving, cell)) return true;
      if (moving.moved < moving.bytes) break;
      m_group.poll_abort();  // what was read of a sender that gave up may be anything
    } else {
      std::memcpy(moving.buffer + moving.moved, payload_of(cell), cell.bytes);
      moving.moved += cell.bytes;
    }
    moving.complete = moving.moved == moving.bytes;
    taken.store(++received, std::memory_order_release);
  }
  return received != before;
}

void channels::check_message(const transfer& expected, std::uint64_t sent_bytes) {
  if (sent_bytes == expected.bytes) return;
  const auto& context = m_group.context();
  throw operation_failure{context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                             "give both sides the same count and datatype, in the same order",
                             "rank %d sent %llu bytes where rank %d expects %llu", expected.peer,
                             static_cast<unsigned long long>(sent_bytes), m_group.rank(),
                             static_cast<unsigned long long>(expected.bytes))};
}

}  // namespace isthmus::shm
