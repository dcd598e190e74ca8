#include "backend/copy_engine/call.hpp"

#include <algorithm>
#include <utility>

#include "runtime/tables.hpp"

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

// Of `bytes`, what is left at `at`, at most `most`.
std::uint64_t rest(std::uint64_t bytes, std::uint64_t at, std::uint64_t most) {
  return at >= bytes ? 0 : std::min(bytes - at, most);
}

}  // namespace

equipment::equipment(device_driver& d, int own_device, int own_rank, int ranks, const settings& s)
    : driver(d),
      device(own_device),
      rank(own_rank),
      size(ranks),
      options(s),
      caller(d, own_device, s.batch_bytes),
      local(d, own_device, s.batch_bytes),
      combiner(d, own_device, s.batch_bytes),
      kernels(d, own_device, s.reduction_blocks),
      slot_uses(static_cast<std::size_t>(ranks), 0) {}

call::call(equipment& tools, const isthmus_operation& operation, const movement& moved, call_record& record,
           call_log& log, bool captured)
    : m_tools(tools),
      m_operation(operation),
      m_moved(moved),
      m_record(record),
      m_log(log),
      m_captured(captured),
      m_send(static_cast<const std::byte*>(operation.send_buf)),
      m_recv(static_cast<std::byte*>(operation.recv_buf)),
      m_together(moved.total_in <= tools.options.together_bytes) {}

// ---- what all ways share ----------------------------------------------------------------------------

std::uint64_t call::bytes_lent_to(int peer) const {
  if (peer == m_tools.rank) return 0;
  const auto& blocks = sources_copy() ? m_moved.incoming : m_moved.outgoing;
  return blocks[static_cast<std::size_t>(peer)].bytes;
}

std::uint64_t call::bytes_copied_of(int peer) const {
  if (peer == m_tools.rank) return 0;
  const auto& blocks = sources_copy() ? m_moved.outgoing : m_moved.incoming;
  return blocks[static_cast<std::size_t>(peer)].bytes;
}

// All that both ends of a transfer know and must agree on. Never 0, which means "nothing here".
std::uint32_t call::tag_of(std::uint64_t bytes) const {
  const std::uint64_t kind = static_cast<std::uint64_t>(m_operation.root) << 16 |
                             static_cast<std::uint64_t>(m_operation.collective) << 2 |
                             static_cast<std::uint64_t>(m_how);
  return static_cast<std::uint32_t>(joined(joined(joined(0, kind), m_where), bytes) >> 32) | 1u;
}

// From here on the watch knows what this call waits for.
void call::begin(way how, std::uint64_t where) {
  m_how = how;
  m_where = where;
  m_record.staged = through_transit();
  m_record.collective = m_operation.collective;
  m_record.datatype = m_operation.datatype;
  m_record.count = m_operation.count;
  m_record.tags.assign(static_cast<std::size_t>(m_tools.size), 0);
  for (int peer = 0; peer < m_tools.size; ++peer)
    if (const std::uint64_t bytes = bytes_copied_of(peer); bytes > 0)
      m_record.tags[static_cast<std::size_t>(peer)] = tag_of(bytes);
  m_log.add(m_record, m_captured);
}

lane& call::lane_to(int peer) {
  if (m_together || m_one_stream || m_tools.beside.empty()) return m_tools.caller;
  const int step = (peer - m_tools.rank + m_tools.size) % m_tools.size;
  const auto turn = static_cast<std::size_t>(step - 1) % (m_tools.beside.size() + 1);
  return turn == 0 ? m_tools.caller : m_tools.beside[turn - 1];
}

void call::borrow_lanes() {
  if (m_together || m_one_stream) return;
  for (lane& one : m_tools.beside) one.follow(m_tools.caller, m_tools.fork);
}

void call::return_lanes() {
  if (m_together || m_one_stream) return;
  for (std::size_t i = 0; i < m_tools.beside.size(); ++i)
    m_tools.caller.follow(m_tools.beside[i], m_tools.joins[i]);
}

void call::copy_own_block(lane& by) {
  const auto own = static_cast<std::size_t>(m_tools.rank);
  const block from = m_moved.outgoing[own], to = m_moved.incoming[own];
  if (from.bytes > 0 && to.bytes > 0) by.copy_here(m_recv + to.at, m_send + from.at, from.bytes);
}

// Beside everything else: that was fastest at every size, and costs nothing in place.
void call::start_own_block() {
  const auto own = static_cast<std::size_t>(m_tools.rank);
  const block from = m_moved.outgoing[own], to = m_moved.incoming[own];
  if (from.bytes == 0 || to.bytes == 0 || m_recv + to.at == m_send + from.at) return;
  m_own_beside = true;
  m_tools.local.follow(m_tools.caller, m_tools.fork);
  copy_own_block(m_tools.local);
  m_tools.local.flush();
}

// To every peer that still needs bytes `beyond` the given place of its block. All loans are marked before the
// first is announced: a borrower may be that fast.
void call::lend(lane& by, thing what, std::uint64_t beyond) {
  mark(by, what, beyond);
  announce(by, what, beyond);
}

void call::mark(lane& by, thing what, std::uint64_t beyond) {
  for (int step = 1; step < m_tools.size; ++step)
    if (const int peer = served_at(step); bytes_lent_to(peer) > beyond)
      by.write(m_tools.area.lent(m_tools.rank, what, peer), 1);
}

void call::announce(lane& by, thing what, std::uint64_t beyond) {
  for (int step = 1; step < m_tools.size; ++step)
    if (const int peer = served_at(step); bytes_lent_to(peer) > beyond)
      by.write(m_tools.area.ready(peer, what, m_tools.rank), tag_of(bytes_lent_to(peer)));
}

// No word is cleared before all have come: the watch tells by them who is missing.
void call::await(lane& by, std::span<const transfer> wanted) {
  for (const transfer& one : wanted)
    by.wait_equal(m_tools.area.ready(m_tools.rank, one.what, one.lender),
                  m_record.tags[static_cast<std::size_t>(one.lender)]);
  for (const transfer& one : wanted) by.write(m_tools.area.ready(m_tools.rank, one.what, one.lender), 0);
}

void call::give_back(lane& by, const transfer& one) {
  by.write(m_tools.area.lent(one.lender, one.what, m_tools.rank), 0);
}

// `wanted` is in the order in which this rank visits its peers.
void call::copy_all(const std::vector<transfer>& wanted) {
  if (m_together) {
    await(m_tools.caller, wanted);
    for (const transfer& one : wanted) m_tools.caller.copy(one.to, one.from, one.bytes);
    for (const transfer& one : wanted) give_back(m_tools.caller, one);
    return;
  }
  for (const transfer& one : wanted) {
    lane& by = lane_to(one.lender);
    await(by, {&one, 1});
    by.copy(one.to, one.from, one.bytes);
    give_back(by, one);
  }
}

// ---- between the users' buffers ---------------------------------------------------------------------

void call::issue_in_heap(way how, const heap_places& places) {
  begin(how, places.where);
  lane& main = m_tools.caller;
  if (places.own_first)
    copy_own_block(main);
  else
    start_own_block();
  lend(main, thing::own_buffer, 0);
  note_progress();  // while the peers' signals are on their way
  borrow_lanes();
  std::vector<transfer> wanted;
  for (int step = 1; step < m_tools.size; ++step) {
    const int peer = neighbour(step);
    const auto row = static_cast<std::size_t>(peer);
    const std::uint64_t bytes = bytes_copied_of(peer);
    if (bytes == 0) continue;
    const std::byte* from = how == way::push ? m_send + m_moved.outgoing[row].at : places.at[row];
    std::byte* to = how == way::push ? places.at[row] : m_recv + m_moved.incoming[row].at;
    wanted.push_back({thing::own_buffer, peer, from, to, bytes});
  }
  copy_all(wanted);
  return_lanes();
  if (m_own_beside) main.follow(m_tools.local, m_tools.local_join);
  for (int step = 1; step < m_tools.size; ++step)
    if (const int peer = served_at(step); bytes_lent_to(peer) > 0)
      main.wait_equal(m_tools.area.lent(m_tools.rank, thing::own_buffer, peer), 0);
}

// ---- through the transit area -------------------------------------------------------------------------

// A slot holds one piece for all peers, or one for each: then in rank order, without the owner.
void call::set_piece_bytes() {
  const auto rows = static_cast<std::uint64_t>(m_moved.same_for_all ? 1 : std::max(m_tools.size - 1, 1));
  m_piece_bytes = m_tools.area.slot_bytes() / rows / alignment * alignment;
}

// Until no peer uses the slot any more.
void call::await_return(lane& by, thing slot) {
  for (int step = 1; step < m_tools.size; ++step)
    by.wait_equal(m_tools.area.lent(m_tools.rank, slot, served_at(step)), 0);
}

std::uint64_t call::pieces_of(int source) const {
  const std::uint64_t bytes = m_moved.longest[static_cast<std::size_t>(source)];
  return (bytes + m_piece_bytes - 1) / m_piece_bytes;
}

void call::fill(lane& by, std::uint64_t piece) {
  const int own = m_tools.rank;
  const std::uint64_t at = piece * m_piece_bytes;
  const thing slot = slot_for(own, piece);
  await_return(by, slot);
  std::byte* to = m_tools.area.slot(own, slot);
  for (int reader = 0; reader < m_tools.size; ++reader) {
    const std::uint64_t bytes = rest(bytes_lent_to(reader), at, m_piece_bytes);
    if (bytes > 0) by.copy_here(to, m_send + m_moved.outgoing[static_cast<std::size_t>(reader)].at + at, bytes);
    if (bytes > 0 && m_moved.same_for_all) break;
    if (reader != own && !m_moved.same_for_all) to += m_piece_bytes;
  }
  mark(by, slot, at);
}

void call::announce_piece(lane& by, std::uint64_t piece) {
  announce(by, slot_for(m_tools.rank, piece), piece * m_piece_bytes);
}

std::vector<call::transfer> call::staged_by_peers(std::uint64_t piece) const {
  const std::uint64_t at = piece * m_piece_bytes;
  std::vector<transfer> wanted;
  for (int step = 1; step < m_tools.size; ++step) {
    const int source = neighbour(step);
    const std::uint64_t bytes = rest(bytes_copied_of(source), at, m_piece_bytes);
    if (bytes == 0) continue;
    const thing slot = slot_for(source, piece);
    const std::byte* from =
        m_moved.same_for_all ? m_tools.area.slot(source, slot) : part_of_slot(source, slot, m_tools.rank);
    wanted.push_back(
        {slot, source, from, m_recv + m_moved.incoming[static_cast<std::size_t>(source)].at + at, bytes});
  }
  return wanted;
}

// Each piece as soon as its source has filled a slot; this rank's next one is filled meanwhile. The fetch goes
// to the driver right behind the announcement on which the peers' fetches start.
void call::fetch_freely(lane& stager, std::uint64_t pieces) {
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    copy_all(staged_by_peers(piece));
    for (lane& one : m_tools.beside) one.flush();
    m_tools.caller.flush();
    if (piece + 1 >= pieces_of(m_tools.rank)) continue;
    fill(stager, piece + 1);
    announce_piece(stager, piece + 1);
    stager.flush();
  }
}

// A rank announces its next piece when its own copies of the last one have ended, so all fetch the next one
// together. Whatever need not come between two fetches is done beside the second one.
void call::fetch_in_step(lane& stager, std::uint64_t pieces) {
  lane& main = m_tools.caller;
  std::vector<transfer> fetched;
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    std::vector<transfer> wanted = staged_by_peers(piece);
    await(main, wanted);
    main.record(m_tools.started);
    for (const transfer& one : wanted) main.copy(one.to, one.from, one.bytes);
    main.flush();
    stager.wait(m_tools.started);
    for (const transfer& one : fetched) give_back(stager, one);
    if (piece + 1 < pieces_of(m_tools.rank)) {
      fill(stager, piece + 1);
      main.follow(stager, m_tools.slot_ready);
      announce_piece(main, piece + 1);
    }
    stager.flush();
    fetched = std::move(wanted);
  }
  for (const transfer& one : fetched) give_back(main, one);
}

void call::issue_staged() {
  begin(way::staged, 0);
  set_piece_bytes();
  std::uint64_t pieces = 0;
  for (int source = 0; source < m_tools.size; ++source) pieces = std::max(pieces, pieces_of(source));

  lane& main = m_tools.caller;
  m_one_stream = m_send == m_recv && m_operation.collective == ISTHMUS_ALLTOALL;
  note_progress();
  const bool beside = pieces > 1 && !m_one_stream;
  lane& stager = beside ? m_tools.local : main;
  if (beside)
    stager.follow(main, m_tools.fork);
  else
    start_own_block();
  borrow_lanes();
  if (pieces_of(m_tools.rank) > 0) {
    fill(stager, 0);
    announce_piece(stager, 0);
    stager.flush();
  }
  if (beside && keeps_step())
    fetch_in_step(stager, pieces);
  else
    fetch_freely(stager, pieces);
  if (beside) copy_own_block(stager);
  return_lanes();
  if (beside || m_own_beside) main.follow(m_tools.local, m_tools.local_join);
  for (int source = 0; source < m_tools.size; ++source)
    m_tools.slot_uses[static_cast<std::size_t>(source)] += pieces_of(source);
}

// ---- reduce_scatter ---------------------------------------------------------------------------------

// A slot for the peers' pieces.
void call::clear_slot(lane& by, std::uint64_t piece) {
  const thing slot = slot_for(m_tools.rank, piece);
  await_return(by, slot);
  mark(by, slot, piece * m_piece_bytes);
}

void call::deposit(std::uint64_t piece) {
  const std::uint64_t at = piece * m_piece_bytes;
  std::vector<transfer> wanted;
  for (int step = 1; step < m_tools.size; ++step) {
    const int reader = neighbour(step);
    const thing slot = slot_for(reader, piece);
    const block& whole = m_moved.outgoing[static_cast<std::size_t>(reader)];
    wanted.push_back({slot, reader, m_send + whole.at + at, part_of_slot(reader, slot, m_tools.rank),
                      rest(whole.bytes, at, m_piece_bytes)});
  }
  copy_all(wanted);
}

void call::combine(lane& by, std::uint64_t piece, native_kernel kernel) {
  const std::uint64_t at = piece * m_piece_bytes;
  const thing slot = slot_for(m_tools.rank, piece);
  const block& own = m_moved.outgoing[static_cast<std::size_t>(m_tools.rank)];
  await_return(by, slot);
  m_tools.kernels.launch(by, kernel,
                         {.others = m_tools.area.slot(m_tools.rank, slot),
                          .row_bytes = m_piece_bytes,
                          .own = m_send + own.at + at,
                          .result = m_recv + at,
                          .count = rest(own.bytes, at, m_piece_bytes) / bytes_of(m_operation.datatype),
                          .rank = m_tools.rank,
                          .size = m_tools.size},
                         m_operation.datatype);
}

// Each rank lends a slot, puts a piece into those of its peers, lends its other slot and combines what came
// into the first. A rank that runs all of this one after the other gets through: each of these steps waits only
// for steps of its peers that come earlier in this same order.
void call::issue_deposit(native_kernel kernel) {
  begin(way::deposit, static_cast<std::uint64_t>(m_operation.op) * ISTHMUS_DATATYPE_COUNT +
                          static_cast<std::uint64_t>(m_operation.datatype));
  lane& main = m_tools.caller;
  note_progress();
  if (m_tools.size == 1) return copy_own_block(main);
  set_piece_bytes();
  const std::uint64_t pieces = pieces_of(m_tools.rank);
  const bool beside = pieces > 1;
  lane& combiner = beside ? m_tools.combiner : main;
  if (beside) combiner.follow(main, m_tools.fork);
  borrow_lanes();
  clear_slot(combiner, 0);
  announce_piece(combiner, 0);
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    if (beside) combiner.flush();
    deposit(piece);
    for (lane& one : m_tools.beside) one.flush();
    if (beside) main.flush();
    if (piece + 1 < pieces) {
      clear_slot(combiner, piece + 1);
      if (keeps_step()) main.follow(combiner, m_tools.slot_ready);
      announce_piece(keeps_step() ? main : combiner, piece + 1);
    }
    combine(combiner, piece, kernel);
  }
  return_lanes();
  if (beside) main.follow(combiner, m_tools.local_join);
  for (std::uint64_t& uses : m_tools.slot_uses) uses += pieces;
}

}  // namespace isthmus::copy_engine
