// The data path: every flow keeps a window of chunks in flight.
#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>

#include "backends/ucx/algorithms.hpp"
#include "backends/ucx/ucx_state.hpp"
#include "base/block_map.hpp"
#include "base/error.hpp"

namespace isthmus::ucx {

peer_flow& ucx_state::add(bool is_send, int peer, message_kind kind, const void* buffer, std::uint64_t bytes) {
  peer_flow& flow = m_flows.emplace_back();
  flow.peer = peer;
  flow.is_send = is_send;
  flow.kind = kind;
  flow.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
  flow.bytes = bytes;
  if (m_device && bytes > 0) flow.memory_type = m_device->memory_type_of(buffer);
  return flow;
}

bool ucx_state::is_complete(const std::deque<peer_flow>& flows) {
  return std::ranges::all_of(flows, [](const peer_flow& each) { return each.complete(); });
}

bool ucx_state::advance(std::deque<peer_flow>& flows) {
  bool has_progress = false;
  const auto size = static_cast<std::size_t>(m_context.size);
  m_busy.assign(2 * message_kind_count * size, 0);
  for (peer_flow& each : flows) {
    if (each.complete()) continue;
    char& busy = m_busy[(static_cast<std::size_t>(each.kind) * 2 + (each.is_send ? 1 : 0)) * size +
                        static_cast<std::size_t>(each.peer)];
    has_progress |= advance(each, busy == 0);
    if (each.posted_bytes < each.bytes) busy = 1;
  }
  return has_progress;
}

bool ucx_state::advance(peer_flow& flow, bool can_post) {
  const std::uint64_t posted_before = flow.posted_chunks, completed_before = flow.completed_chunks;
  for (; flow.completed_chunks < flow.posted_chunks; ++flow.completed_chunks) {
    const ucx_transfer& chunk = flow.chunks[flow.completed_chunks % max_window];
    if (!chunk.is_done) break;
    check_chunk(flow, chunk);
    flow.completed_bytes += chunk.bytes;
  }
  while (can_post && flow.posted_bytes < flow.bytes &&
         flow.posted_chunks - flow.completed_chunks < m_settings.window) {
    const std::uint64_t bytes = std::min(m_settings.chunk_bytes, flow.bytes - flow.posted_bytes);
    if (bytes > flow.limit || flow.posted_bytes > flow.limit - bytes) break;
    post_chunk(flow, bytes);
  }
  return flow.posted_chunks != posted_before || flow.completed_chunks != completed_before;
}

void ucx_state::post_chunk(peer_flow& flow, std::uint64_t bytes) {
  ucx_transfer& chunk = flow.chunks[flow.posted_chunks % max_window];
  std::byte* const address = flow.buffer + flow.posted_bytes % flow.ring_bytes;
  if (flow.copy_source != nullptr) copy(address, flow.copy_source + flow.posted_bytes, bytes);
  const std::uint64_t sequence = flow.kind == message_kind::message ? 0 : m_sequence;
  if (flow.is_send) {
    m_needs_flush = true;
    m_worker.send(chunk, flow.peer, make_tag(flow.kind, m_context.rank, sequence), address, bytes,
                  flow.memory_type);
  } else {
    m_worker.receive(chunk, make_tag(flow.kind, flow.peer, sequence), full_tag_mask, address, bytes,
                     flow.memory_type);
  }
  flow.posted_bytes += bytes;
  ++flow.posted_chunks;
}

void ucx_state::check_chunk(const peer_flow& flow, const ucx_transfer& chunk) {
  const bool is_complete_chunk = flow.is_send || chunk.received_bytes == chunk.bytes;
  if (chunk.status == native_status::ok && is_complete_chunk) return;
  if (chunk.status == native_status::ok || chunk.status == native_status::message_truncated)
    fail(ISTHMUS_ERROR_MISMATCH,
         fmt::format("{}: rank {} sent a different number of bytes than the {} that rank {} expects",
                     m_activity, flow.peer, flow.bytes, m_context.rank),
         "pass the same count and datatype on both sides, in the same order", ISTHMUS_HERE);
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
    owned_memory& memory = m_device_scratch[m_scratch_used++];
    if (memory.bytes() < bytes) memory = m_device->allocate(bytes);
    return static_cast<std::byte*>(memory.get());
  }
  if (m_scratch_used == m_scratch.size()) m_scratch.emplace_back();
  std::vector<std::byte>& memory = m_scratch[m_scratch_used++];
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// Point-to-point messages start immediately and progress while the collectives run in order.
void ucx_state::start_messages(const isthmus_operation* operations, std::size_t n) {
  std::vector<peer_flow*> own_sends, own_receives;
  for (std::size_t i = 0; i < n; ++i) {
    const isthmus_operation& each = operations[i];
    if (!is_point_to_point(each.collective) || each.count == 0) continue;
    const bool is_send = each.collective == ISTHMUS_SEND;
    peer_flow& flow = add(is_send, each.root, message_kind::message, is_send ? each.send_buf : each.recv_buf,
                          each.count * bytes_of(each.datatype));
    if (each.root == m_context.rank) (is_send ? own_sends : own_receives).push_back(&flow);
  }
  const auto is_pair = [](const peer_flow* send_flow, const peer_flow* recv_flow) {
    return send_flow->bytes == recv_flow->bytes;
  };
  if (!std::ranges::equal(own_sends, own_receives, is_pair)) {
    m_flows.clear();
    throw reported_failure{m_context.fail(
        m_context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
        "post a self-send and the matching recv of equal length in one group",
        "send/recv: rank %d exchanges with itself, but the group has no matching operation", m_context.rank)};
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    copy(own_receives[i]->buffer, own_sends[i]->buffer, own_sends[i]->bytes);
    for (peer_flow* each : {own_sends[i], own_receives[i]})
      each->completed_bytes = each->posted_bytes = each->bytes;
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

void ucx_state::run_all(const isthmus_operation* operations, const int* algorithms, std::size_t n) {
  start_messages(operations, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;
    m_activity = row_of(operations[i].collective).name;
    ++m_sequence;
    m_scratch_used = 0;
    run_collective(*this, operations[i], algorithms[i]);
  }
  finish_messages();
  flush();
  if (m_backoff.is_long()) begin_wait();  // this rank no longer waits for a peer
}

// Sent data must leave this process before the call returns, because a peer may need it before this
// rank's next call.
void ucx_state::flush() {
  if (!m_needs_flush) return;
  m_needs_flush = false;
  if (!m_worker.start_flush()) return;
  begin_wait();
  while (!m_worker.is_flushed())
    if (!m_worker.progress()) back_off();
}

isthmus_status ucx_state::enqueue(const isthmus_operation* operations, const int* algorithms,
                                  std::size_t n) noexcept {
  if (m_is_shut_down)
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                          "an earlier call of rank %d on this communicator failed", m_context.rank);
  try {
    return on_device([&] { return run_guarded(operations, algorithms, n); });
  } catch (const error& failure) {  // the device could not be made current
    const isthmus_error_info& info = failure.info();
    return m_context.fail(m_context.runtime, info.status, info.native_code, info.location, info.hint, "%s",
                          info.message);
  }
}

// Waits for the earlier work of the operations' streams.
void ucx_state::wait_for_streams(const isthmus_operation* operations, std::size_t n) {
  if (!m_device) return;
  for (std::size_t i = 0; i < n; ++i)
    if (i == 0 || operations[i].stream != operations[i - 1].stream) m_device->enter(operations[i].stream);
}

isthmus_status ucx_state::run_guarded(const isthmus_operation* operations, const int* algorithms,
                                      std::size_t n) {
  try {
    wait_for_streams(operations, n);
    run_all(operations, algorithms, n);
    return ISTHMUS_SUCCESS;
  } catch (const error& failure) {  // device failure
    const isthmus_error_info& info = failure.info();
    if (info.status != ISTHMUS_ERROR_INVALID_USAGE) shut_down();
    return m_context.fail(m_context.runtime, info.status, info.native_code, info.location, info.hint, "%s",
                          info.message);
  } catch (const reported_failure& failure_report) {
    // Usage errors are detected before any data moves. After any other failure, this rank is out of step
    // with its peers.
    if (failure_report.status != ISTHMUS_ERROR_INVALID_USAGE) shut_down();
    return failure_report.status;
  } catch (const std::exception& problem) {
    shut_down();
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&problem) != nullptr;
    return m_context.fail(m_context.runtime, no_memory ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_INTERNAL,
                          0, ISTHMUS_HERE, nullptr, "%s", no_memory ? "host memory exhausted" : problem.what());
  }
}

}  // namespace isthmus::ucx
