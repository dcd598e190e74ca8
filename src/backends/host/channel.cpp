#include "backends/host/channel.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/block_map.hpp"
#include "base/error.hpp"

namespace isthmus::host {
namespace {

// A cell's payload follows its header.
std::byte* payload_of(cell_header& cell) { return reinterpret_cast<std::byte*>(&cell) + sizeof(cell_header); }

struct part {
  std::uint64_t begin, bytes;
};

std::uint64_t count_parts(const cell_header& cell) {
  return (cell.bytes + cell_header::part_bytes - 1) / cell_header::part_bytes;
}

// A part of a message that was sent as an address, if one is left.
std::optional<part> take_part(cell_header& cell) {
  const std::uint64_t parts = count_parts(cell);
  if (cell.parts_taken.load(std::memory_order_relaxed) >= parts) return std::nullopt;
  const std::uint64_t taken = cell.parts_taken.fetch_add(1, std::memory_order_relaxed);
  if (taken >= parts) return std::nullopt;
  const std::uint64_t begin = taken * cell_header::part_bytes;
  return part{begin, std::min(cell_header::part_bytes, cell.bytes - begin)};
}

}  // namespace

channels::channels(team& team) : m_team(team), m_ends(channel_kinds * static_cast<std::size_t>(team.size())) {}

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
    if (each.peer != m_team.rank()) continue;
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
    const auto& context = m_team.context();
    throw failure{context.fail(context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                               "put a send to oneself and its recv, of equal length, into one group",
                               "a %s of %llu bytes with the own rank %d has no counterpart in its group",
                               lonely.sends ? "send" : "recv", static_cast<unsigned long long>(lonely.bytes),
                               lonely.peer)};
  }
}

void channels::copy_own() {
  for (const own_message& each : m_own) std::memmove(each.receive->buffer, each.send->buffer, each.send->bytes);
  m_own.clear();
}

void channels::run_messages(std::span<const isthmus_operation> operations) {
  m_transfers.clear();
  for (const isthmus_operation& each : operations)
    if (is_message(each.collective)) add_with(each.root, each, block_map(each, m_team.rank(), m_team.size()));
  if (m_transfers.empty()) return;
  pair_self();
  progress_all(channel_kind::message);
}

// What the operation moves between this rank and a peer.
void channels::add_with(int peer, const isthmus_operation& operation, const block_map& blocks) {
  const block out = blocks.outgoing(peer), in = blocks.incoming(peer);
  add(true, peer, static_cast<const std::byte*>(operation.send_buf) + out.at, out.bytes);
  add(false, peer, static_cast<const std::byte*>(operation.recv_buf) + in.at, in.bytes);
}

void channels::run_collective(const isthmus_operation& operation) {
  const block_map blocks(operation, m_team.rank(), m_team.size());
  const bool gated = overwrites_outgoing(operation);
  m_transfers.clear();
  for (int i = 0; i < m_team.size(); ++i) {
    const std::size_t sent = m_transfers.size();
    add_with((m_team.rank() + i) % m_team.size(), operation, blocks);
    if (!gated) continue;
    for (std::size_t added = sent; added < m_transfers.size(); ++added) m_transfers[added].in_place = true;
    if (m_transfers.size() == sent + 2) m_transfers.back().gate = sent;
  }
  pair_self();
  progress_all(channel_kind::collective);
}

// Moves whatever can move until all is complete. Per direction and peer only the first unfinished message
// moves, which keeps the order.
void channels::progress_all(channel_kind kind) {
  const auto size = static_cast<std::size_t>(m_team.size());
  waiter wait(m_team);
  for (;;) {
    bool moved = false;
    m_busy.assign(2 * size, 0);
    m_awaited.clear();
    for (transfer& each : m_transfers) {
      if (each.complete) continue;
      char& busy = m_busy[static_cast<std::size_t>(each.peer) + (each.sends ? size : 0)];
      if (busy == 0) moved |= progress(kind, each);
      if (each.complete) continue;
      busy = 1;
      m_awaited.push_back(each.peer);
    }
    copy_own();  // while the peers, which know by now what they may copy, do so
    if (m_awaited.empty()) return;
    if (moved)
      wait.reset();
    else
      wait.pause(m_awaited);
  }
}

bool channels::progress(channel_kind kind, transfer& moving) {
  return moving.sends ? send_cells(kind, moving) : receive_cells(kind, moving);
}

bool channels::send_cells(channel_kind kind, transfer& moving) {
  std::uint64_t& sent = ends_of(kind, moving.peer).sent;
  const flag& taken = m_team.receiving(moving.peer, kind, m_team.rank()).acknowledged;
  const std::uint64_t acknowledged = taken.load(std::memory_order_acquire);
  if (moving.by_address) {
    moving.complete = acknowledged >= sent;
    return moving.complete || push_part(kind, moving);
  }
  const std::uint64_t before = sent;
  while (!moving.complete && !moving.by_address && sent < acknowledged + m_team.sizes().cells) {
    cell_header& cell = m_team.cell(m_team.rank(), kind, moving.peer, sent);
    cell.message_bytes = moving.bytes;
    // a long message is copied once, out of the buffer itself
    moving.by_address = !moving.in_place && moving.moved == 0 && moving.bytes > m_team.tuned().address_bytes &&
                        m_team.is_reached_by(moving.peer, moving.buffer);
    if (moving.by_address) {
      cell.address = moving.buffer;
      cell.bytes = moving.bytes;
      cell.parts_taken.store(0, std::memory_order_relaxed);
      cell.parts_pushed.store(0, std::memory_order_relaxed);
    } else {
      cell.address = nullptr;
      cell.bytes = std::min(m_team.sizes().cell_bytes, moving.bytes - moving.moved);
      std::memcpy(payload_of(cell), moving.buffer + moving.moved, cell.bytes);
      moving.moved += cell.bytes;
      moving.complete = moving.moved == moving.bytes;
    }
    cell.ready.store(++sent, std::memory_order_release);
  }
  return sent != before;
}

// The sender has nothing else to do than to copy a part itself, where the receiver allows it.
bool channels::push_part(channel_kind kind, transfer& moving) {
  const std::uint64_t sent = ends_of(kind, moving.peer).sent;
  const reception& receiver = m_team.receiving(moving.peer, kind, m_team.rank());
  if (receiver.offered.load(std::memory_order_acquire) != sent) return false;
  cell_header& cell = m_team.cell(m_team.rank(), kind, moving.peer, sent - 1);
  const auto mine = take_part(cell);
  if (!mine) return false;
  // from here on the receiver waits for the part, and what it offers stays; if it expects another length, it
  // says so
  if (receiver.bytes != moving.bytes) return false;
  const write_window window = m_team.open_write_window();
  m_team.look_at_poison();
  m_team.write_to(moving.peer, moving.buffer + mine->begin, receiver.buffer + mine->begin, mine->bytes);
  cell.parts_pushed.fetch_add(1, std::memory_order_release);
  return true;
}

// Tells the sender where it may write, if the message is long. Not where ranks outnumber the cores: a sender
// that loses its core within a part would keep the receiver waiting.
void channels::offer(channel_kind kind, transfer& moving) {
  if (moving.offered) return;
  moving.offered = true;
  if (moving.bytes < 2 * cell_header::part_bytes || moving.gate != transfer::no_gate ||
      m_team.tuned().spins == 0 || !m_team.is_reached_by(moving.peer, moving.buffer))
    return;
  reception& own = m_team.receiving(m_team.rank(), kind, moving.peer);
  own.buffer = moving.buffer;
  own.bytes = moving.bytes;
  m_team.expose({moving.buffer, moving.bytes, false});
  own.offered.store(ends_of(kind, moving.peer).received + 1, std::memory_order_release);
}

// Copies a part out of the sender's buffer. False when none is left; the message is complete when the sender
// has copied what it took.
bool channels::pull_part(transfer& moving, cell_header& cell) {
  if (const auto mine = take_part(cell)) {
    m_team.read_from(moving.peer, moving.buffer + mine->begin, cell.address + mine->begin, mine->bytes);
    moving.moved += mine->bytes;
    ++moving.pulled;
    return true;
  }
  if (moving.pulled + cell.parts_pushed.load(std::memory_order_acquire) == count_parts(cell))
    moving.moved = moving.bytes;
  return false;
}

bool channels::receive_cells(channel_kind kind, transfer& moving) {
  std::uint64_t& received = ends_of(kind, moving.peer).received;
  flag& taken = m_team.receiving(m_team.rank(), kind, moving.peer).acknowledged;
  offer(kind, moving);
  const std::uint64_t before = received;
  while (!moving.complete) {
    cell_header& cell = m_team.cell(moving.peer, kind, m_team.rank(), received);
    if (cell.ready.load(std::memory_order_acquire) != received + 1) break;
    check_message(moving, cell);
    const std::uint64_t end = cell.address != nullptr ? cell.bytes : moving.moved + cell.bytes;
    if (moving.gate != transfer::no_gate && m_transfers[moving.gate].moved < end) break;
    if (cell.address != nullptr) {
      if (pull_part(moving, cell)) return true;
      if (moving.moved < moving.bytes) break;
      m_team.look_at_poison();  // what was read of a sender that gave up may be anything
    } else {
      std::memcpy(moving.buffer + moving.moved, payload_of(cell), cell.bytes);
      moving.moved += cell.bytes;
    }
    moving.complete = moving.moved == moving.bytes;
    taken.store(++received, std::memory_order_release);
  }
  return received != before;
}

void channels::check_message(const transfer& expected, const cell_header& cell) {
  if (cell.message_bytes == expected.bytes) return;
  const auto& context = m_team.context();
  throw failure{context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                             "give both sides the same count and datatype, in the same order",
                             "rank %d sent %llu bytes where rank %d expects %llu", expected.peer,
                             static_cast<unsigned long long>(cell.message_bytes), m_team.rank(),
                             static_cast<unsigned long long>(expected.bytes))};
}

}  // namespace isthmus::host
