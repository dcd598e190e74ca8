// How bytes move: every flow keeps a window of pieces in flight.
#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>

#include "backends/ucx/algorithms.hpp"
#include "backends/ucx/ucx_state.hpp"
#include "base/block_map.hpp"
#include "base/error.hpp"

namespace isthmus::ucx {

peer_flow& ucx_state::add(bool sends, int peer, message_kind kind, const void* buffer, std::uint64_t bytes) {
  peer_flow& added = m_flows.emplace_back();
  added.peer = peer;
  added.sends = sends;
  added.what = what;
  added.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
  added.bytes = bytes;
  if (m_device && bytes > 0) added.memory = m_device->memory_type_of(buffer);
  return added;
}

bool ucx_state::is_complete(const std::deque<peer_flow>& flows) {
  return std::ranges::all_of(flows, [](const peer_flow& each) { return each.complete(); });
}

bool ucx_state::advance(std::deque<peer_flow>& flows) {
  bool moved = false;
  const auto size = static_cast<std::size_t>(m_context.size);
  m_busy.assign(2 * message_kind_count * size, 0);
  for (peer_flow& each : flows) {
    if (each.complete()) continue;
    char& busy = m_busy[(static_cast<std::size_t>(each.what) * 2 + (each.sends ? 1 : 0)) * size +
                        static_cast<std::size_t>(each.peer)];
    moved |= advance(each, busy == 0);
    if (each.posted_bytes < each.bytes) busy = 1;
  }
  return moved;
}

bool ucx_state::advance(peer_flow& flow, bool may_start) {
  const std::uint64_t started = flow.posted_chunks, ended = flow.completed_chunks;
  for (; flow.completed_chunks < flow.posted_chunks; ++flow.completed_chunks) {
    const ucx_transfer& chunk = flow.chunks[flow.completed_chunks % max_window];
    if (!chunk.is_done) break;
    check_chunk(flow, chunk);
    flow.completed_bytes += chunk.bytes;
  }
  while (may_start && flow.posted_bytes < flow.bytes && flow.posted_chunks - flow.completed_chunks < m_settings.window) {
    const std::uint64_t bytes = std::min(m_settings.chunk_bytes, flow.bytes - flow.posted_bytes);
    if (bytes > flow.limit || flow.posted_bytes > flow.limit - bytes) break;
    post_chunk(flow, bytes);
  }
  return flow.posted_chunks != started || flow.completed_chunks != ended;
}

void ucx_state::post_chunk(peer_flow& flow, std::uint64_t bytes) {
  ucx_transfer& chunk = flow.chunks[flow.posted_chunks % max_window];
  std::byte* const at = flow.buffer + flow.posted_bytes % flow.ring;
  if (flow.origin != nullptr) copy(at, flow.origin + flow.posted_bytes, bytes);
  const std::uint64_t call = flow.what == message_kind::message ? 0 : m_sequence;
  if (flow.sends) {
    m_needs_flush = true;
    m_worker.send(chunk, flow.peer, make_tag(flow.what, m_context.rank, call), at, bytes, flow.memory);
  } else {
    m_worker.receive(chunk, make_tag(flow.what, flow.peer, call), full_tag_mask, at, bytes, flow.memory);
  }
  flow.posted_bytes += bytes;
  ++flow.posted_chunks;
}

void ucx_state::check_chunk(const peer_flow& flow, const ucx_transfer& chunk) {
  const bool is_whole = flow.sends || chunk.received_bytes == chunk.bytes;
  if (chunk.status == native_status::ok && is_whole) return;
  if (chunk.status == native_status::ok || chunk.status == native_status::message_truncated)
    fail(ISTHMUS_ERROR_MISMATCH,
         fmt::format("rank {} sent another number of bytes than the {} that rank {} expects in {}", flow.peer,
                     flow.bytes, m_context.rank, m_activity),
         "give both sides the same count and datatype, in the same order", ISTHMUS_HERE);
  fail_lost_peer(flow.peer, chunk.status);
}

void ucx_state::copy(void* to, const void* from, std::uint64_t bytes) {
  if (m_device)
    m_device->copy(to, from, bytes);
  else
    std::memmove(to, from, bytes);
}

std::byte* ucx_state::scratch(std::uint64_t bytes) {
  if (m_device) {
    if (m_scratch_used == m_device_scratch.size()) m_device_scratch.emplace_back();
    owned_memory& there = m_device_scratch[m_scratch_used++];
    if (there.bytes() < bytes) there = m_device->allocate(bytes);
    return static_cast<std::byte*>(there.get());
  }
  if (m_scratch_used == m_scratch.size()) m_scratch.emplace_back();
  std::vector<std::byte>& memory = m_scratch[m_scratch_used++];
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// Messages start at once and move on while the collectives run in their order.
void ucx_state::start_messages(const isthmus_operation* operations, std::size_t n) {
  std::vector<peer_flow*> own_sends, own_receives;
  for (std::size_t i = 0; i < n; ++i) {
    const isthmus_operation& each = operations[i];
    if (!is_point_to_point(each.collective) || each.count == 0) continue;
    const bool sends = each.collective == ISTHMUS_SEND;
    peer_flow& added = add(sends, each.root, message_kind::message, sends ? each.send_buf : each.recv_buf,
                      each.count * bytes_of(each.datatype));
    if (each.root == m_context.rank) (sends ? own_sends : own_receives).push_back(&added);
  }
  const auto is_pair = [](const peer_flow* sent, const peer_flow* received) { return sent->bytes == received->bytes; };
  if (!std::ranges::equal(own_sends, own_receives, is_pair)) {
    m_flows.clear();
    throw failure{m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                                 "put a send to oneself and its recv, of equal length, into one group",
                                 "a send or recv with the own rank %d has no counterpart in its group",
                                 m_context.rank)};
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    copy(own_receives[i]->buffer, own_sends[i]->buffer, own_sends[i]->bytes);
    for (peer_flow* each : {own_sends[i], own_receives[i]}) each->completed_bytes = each->posted_bytes = each->bytes;
  }
  m_messages.swap(m_flows);
  m_flows.clear();
}

void ucx_state::finish_messages() {
  if (m_messages.empty()) return;
  m_activity = "send or recv";
  m_flows.swap(m_messages);
  run();
}

void ucx_state::run_all(const isthmus_operation* operations, const char* const* names, std::size_t n) {
  start_messages(operations, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;
    m_activity = row_of(operations[i].collective).name;
    ++m_sequence;
    m_scratch_used = 0;
    run_collective(*this, operations[i], names == nullptr ? nullptr : names[i]);
  }
  finish_messages();
  flush();
}

// What was sent leaves this process before the call ends: nobody may wait for it until the next one.
void ucx_state::flush() {
  if (!m_needs_flush) return;
  m_needs_flush = false;
  if (!m_worker.start_flush()) return;
  begin_wait();
  while (!m_worker.is_flushed())
    if (!m_worker.progress()) back_off();
}

isthmus_status ucx_state::enqueue(const isthmus_operation* operations, const char* const* names,
                                std::size_t n) noexcept {
  if (m_is_shut_down)
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
void ucx_state::wait_for_streams(const isthmus_operation* operations, std::size_t n) {
  if (!m_device) return;
  for (std::size_t i = 0; i < n; ++i)
    if (i == 0 || operations[i].stream != operations[i - 1].stream) m_device->enter(operations[i].stream);
}

isthmus_status ucx_state::run_guarded(const isthmus_operation* operations, const char* const* names,
                                    std::size_t n) {
  try {
    wait_for_streams(operations, n);
    run_all(operations, names, n);
    return ISTHMUS_SUCCESS;
  } catch (const error& failed) {  // of the device
    const isthmus_error_info& told = failed.info();
    if (told.status != ISTHMUS_ERROR_INVALID_USAGE) shut_down();
    return m_context.fail(m_context.runtime, told.status, told.native_code, told.location, told.hint, "%s",
                          told.message);
  } catch (const failure& failed) {
    // a usage error was found before anything moved; after all else this rank is out of step for good
    if (failed.status != ISTHMUS_ERROR_INVALID_USAGE) shut_down();
    return failed.status;
  } catch (const std::exception& problem) {
    shut_down();
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&problem) != nullptr;
    return m_context.fail(m_context.runtime, no_memory ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_INTERNAL,
                          0, ISTHMUS_HERE, nullptr, "%s", no_memory ? "host memory exhausted" : problem.what());
  }
}

}  // namespace isthmus::ucx
