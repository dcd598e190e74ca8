// How bytes move: every flow keeps a window of pieces in flight.
#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>

#include "backends/ucx/moves.hpp"
#include "backends/ucx/session.hpp"
#include "base/block_map.hpp"
#include "base/error.hpp"

namespace isthmus::ucx {

flow& session::add(bool sends, int peer, kind what, const void* buffer, std::uint64_t bytes) {
  flow& added = m_flows.emplace_back();
  added.peer = peer;
  added.sends = sends;
  added.what = what;
  added.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
  added.bytes = bytes;
  if (m_lane && bytes > 0) added.memory = m_lane->memory_type_of(buffer);
  return added;
}

bool session::is_complete(const std::deque<flow>& flows) {
  return std::ranges::all_of(flows, [](const flow& each) { return each.complete(); });
}

bool session::advance(std::deque<flow>& flows) {
  bool moved = false;
  const auto size = static_cast<std::size_t>(m_context.size);
  m_busy.assign(2 * kinds * size, 0);
  for (flow& each : flows) {
    if (each.complete()) continue;
    char& busy = m_busy[(static_cast<std::size_t>(each.what) * 2 + (each.sends ? 1 : 0)) * size +
                        static_cast<std::size_t>(each.peer)];
    moved |= advance(each, busy == 0);
    if (each.begun < each.bytes) busy = 1;
  }
  return moved;
}

bool session::advance(flow& moving, bool may_start) {
  const std::uint64_t started = moving.started, ended = moving.ended;
  for (; moving.ended < moving.started; ++moving.ended) {
    const transfer& piece = moving.pieces[moving.ended % most_in_flight];
    if (!piece.done) break;
    check_piece(moving, piece);
    moving.completed += piece.bytes;
  }
  while (may_start && moving.begun < moving.bytes && moving.started - moving.ended < m_tuned.window) {
    const std::uint64_t bytes = std::min(m_tuned.piece_bytes, moving.bytes - moving.begun);
    if (bytes > moving.limit || moving.begun > moving.limit - bytes) break;
    start_piece(moving, bytes);
  }
  return moving.started != started || moving.ended != ended;
}

void session::start_piece(flow& moving, std::uint64_t bytes) {
  transfer& piece = moving.pieces[moving.started % most_in_flight];
  std::byte* const at = moving.buffer + moving.begun % moving.ring;
  if (moving.origin != nullptr) copy(at, moving.origin + moving.begun, bytes);
  const std::uint64_t call = moving.what == kind::message ? 0 : m_call;
  if (moving.sends) {
    m_sent = true;
    m_worker.send(piece, moving.peer, make_tag(moving.what, m_context.rank, call), at, bytes, moving.memory);
  } else {
    m_worker.receive(piece, make_tag(moving.what, moving.peer, call), whole_tag, at, bytes, moving.memory);
  }
  moving.begun += bytes;
  ++moving.started;
}

void session::check_piece(const flow& moving, const transfer& piece) {
  const bool is_whole = moving.sends || piece.arrived == piece.bytes;
  if (piece.status == native_status::ok && is_whole) return;
  if (piece.status == native_status::ok || piece.status == native_status::message_truncated)
    fail(ISTHMUS_ERROR_MISMATCH,
         fmt::format("rank {} sent another number of bytes than the {} that rank {} expects in {}", moving.peer,
                     moving.bytes, m_context.rank, m_activity),
         "give both sides the same count and datatype, in the same order", ISTHMUS_HERE);
  lose(moving.peer, piece.status);
}

void session::copy(void* to, const void* from, std::uint64_t bytes) {
  if (m_lane)
    m_lane->copy(to, from, bytes);
  else
    std::memmove(to, from, bytes);
}

std::byte* session::scratch(std::uint64_t bytes) {
  if (m_lane) {
    if (m_scratch_used == m_device_scratch.size()) m_device_scratch.emplace_back();
    owned_memory& there = m_device_scratch[m_scratch_used++];
    if (there.bytes() < bytes) there = m_lane->allocate(bytes);
    return static_cast<std::byte*>(there.get());
  }
  if (m_scratch_used == m_scratch.size()) m_scratch.emplace_back();
  std::vector<std::byte>& memory = m_scratch[m_scratch_used++];
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// Messages start at once and move on while the collectives run in their order.
void session::start_messages(const isthmus_operation* operations, std::size_t n) {
  std::vector<flow*> own_sends, own_receives;
  for (std::size_t i = 0; i < n; ++i) {
    const isthmus_operation& each = operations[i];
    if (!is_point_to_point(each.collective) || each.count == 0) continue;
    const bool sends = each.collective == ISTHMUS_SEND;
    flow& added = add(sends, each.root, kind::message, sends ? each.send_buf : each.recv_buf,
                      each.count * bytes_of(each.datatype));
    if (each.root == m_context.rank) (sends ? own_sends : own_receives).push_back(&added);
  }
  const auto is_pair = [](const flow* sent, const flow* received) { return sent->bytes == received->bytes; };
  if (!std::ranges::equal(own_sends, own_receives, is_pair)) {
    m_flows.clear();
    throw failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                                 "put a send to oneself and its recv, of equal length, into one group",
                                 "a send or recv with the own rank %d has no counterpart in its group",
                                 m_context.rank)};
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    copy(own_receives[i]->buffer, own_sends[i]->buffer, own_sends[i]->bytes);
    for (flow* each : {own_sends[i], own_receives[i]}) each->completed = each->begun = each->bytes;
  }
  m_messages.swap(m_flows);
  m_flows.clear();
}

void session::finish_messages() {
  if (m_messages.empty()) return;
  m_activity = "send or recv";
  m_flows.swap(m_messages);
  run();
}

void session::run_all(const isthmus_operation* operations, const char* const* names, std::size_t n) {
  start_messages(operations, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;
    m_activity = row_of(operations[i].collective).name;
    ++m_call;
    m_scratch_used = 0;
    run_collective(*this, operations[i], names == nullptr ? nullptr : names[i]);
  }
  finish_messages();
  flush();
}

// What was sent leaves this process before the call ends: nobody may wait for it until the next one.
void session::flush() {
  if (!m_sent) return;
  m_sent = false;
  if (!m_worker.start_flush()) return;
  begin_wait();
  while (!m_worker.is_flushed())
    if (!m_worker.progress()) pause();
}

isthmus_status session::enqueue(const isthmus_operation* operations, const char* const* names,
                                std::size_t n) noexcept {
  if (m_ended)
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                          "an earlier call of rank %d over UCX failed", m_context.rank);
  try {
    return on_device([&] { return run_guarded(operations, names, n); });
  } catch (const error& failed) {  // the device can't be made current
    const isthmus_error_info& told = failed.info();
    return m_context.fail(m_context.runtime, told.status, told.native_code, told.location, told.hint, "%s",
                          told.message);
  }
}

// A call starts behind what its stream has before it.
void session::wait_for_streams(const isthmus_operation* operations, std::size_t n) {
  if (!m_lane) return;
  for (std::size_t i = 0; i < n; ++i)
    if (i == 0 || operations[i].stream != operations[i - 1].stream) m_lane->enter(operations[i].stream);
}

isthmus_status session::run_guarded(const isthmus_operation* operations, const char* const* names,
                                    std::size_t n) {
  try {
    wait_for_streams(operations, n);
    run_all(operations, names, n);
    return ISTHMUS_SUCCESS;
  } catch (const error& failed) {  // of the device
    const isthmus_error_info& told = failed.info();
    if (told.status != ISTHMUS_ERROR_INVALID_USAGE) give_up();
    return m_context.fail(m_context.runtime, told.status, told.native_code, told.location, told.hint, "%s",
                          told.message);
  } catch (const failure& failed) {
    // a usage error was found before anything moved; after all else this rank is out of step for good
    if (failed.status != ISTHMUS_ERROR_INVALID_USAGE) give_up();
    return failed.status;
  } catch (const std::exception& problem) {
    give_up();
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&problem) != nullptr;
    return m_context.fail(m_context.runtime, no_memory ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_INTERNAL,
                          0, ISTHMUS_HERE, nullptr, "%s", no_memory ? "host memory exhausted" : problem.what());
  }
}

}  // namespace isthmus::ucx
