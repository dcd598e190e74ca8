// Waiting and failure detection: polls for failures and control messages, finds unresponsive ranks,
// and reports failures.
#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <isthmus/plugin.hpp>

#include "backends/ucx/ucx_state.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "failure/wait.hpp"

namespace isthmus::ucx {
namespace {

using namespace std::chrono_literals;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_list(ranks));
}

}  // namespace

void ucx_state::begin_wait() {
  if (m_backoff.is_long()) m_context.set_awaited_rank(m_context.runtime, -1);
  m_backoff.reset();
  m_has_queried = false;
}

void ucx_state::back_off() {
  if (m_backoff.spin()) {
    if (m_backoff.is_progress_due()) m_context.progress(m_context.runtime);
    return;
  }
  poll_failures();
  if (!m_backoff.is_long()) m_context.set_awaited_rank(m_context.runtime, awaited_peer());
  const double wait_s = std::chrono::duration<double>(m_backoff.measure()).count();
  // Query all ranks after half the timeout, so that the unresponsive ones are known at its end.
  if (wait_s > m_context.timeout_s / 2 && !m_has_queried) {
    m_has_queried = true;
    query_ranks();
  }
  if (wait_s > m_context.timeout_s) fail_timeout();
  const bool has_work = m_context.progress(m_context.runtime) != 0;
  m_backoff.pause(has_work);
}

void ucx_state::poll_failures() {
  if (m_abort.load(std::memory_order_acquire) || m_context.is_aborted(m_context.runtime) != 0) fail_aborted();
  poll_control_messages();
  if (m_worker.failed_endpoints() == 0) return;
  for (const peer_flow& each : m_flows) {
    if (each.complete() || m_worker.endpoint_status(each.peer) == native_status::ok) continue;
    // The peer's last data may still be in transit, so report the failure only at the second poll.
    if (m_known_failures != m_worker.failed_endpoints()) {
      m_known_failures = m_worker.failed_endpoints();
      return;
    }
    fail_lost_peer(each.peer, m_worker.endpoint_status(each.peer));
  }
}

void ucx_state::poll_control_messages() {
  if (!m_is_receiving) {
    m_is_receiving = true;
    m_worker.receive(m_incoming_transfer, make_tag(message_kind::control, 0, 0), kind_mask, &m_incoming,
                     sizeof m_incoming);
  }
  while (m_incoming_transfer.is_done) {
    const bool is_complete = m_incoming_transfer.status == native_status::ok &&
                             m_incoming_transfer.received_bytes == sizeof m_incoming;
    const control_message message = m_incoming;
    m_worker.receive(m_incoming_transfer, make_tag(message_kind::control, 0, 0), kind_mask, &m_incoming,
                     sizeof m_incoming);
    if (is_complete) handle_control_message(message);
  }
}

void ucx_state::handle_control_message(const control_message& message) {
  if (message.sender < 0 || message.sender >= m_context.size) return;
  if (message.type == control_message::query) {
    control_message reply;
    reply.type = control_message::reply;
    reply.query_id = message.query_id;
    return notify(message.sender, reply);
  }
  if (message.type == control_message::reply) {
    m_last_reply[static_cast<std::size_t>(message.sender)] = message.query_id;
    return;
  }
  m_failed_ranks.assign(
      message.failed_ranks,
      message.failed_ranks + std::clamp(message.failed_count, 0, control_message::max_reported_ranks));
  m_was_aborted = message.is_abort != 0;
  if (m_was_aborted)
    fail(ISTHMUS_ERROR_ABORTED,
         fmt::format("{}: rank {} aborted the communicator; rank {} stopped", m_activity, message.sender,
                     m_context.rank),
         nullptr, ISTHMUS_HERE);
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("{}: {} failed (reported by rank {}); rank {} aborted", m_activity,
                   ranks_text(m_failed_ranks), message.sender, m_context.rank),
       "look for the first error of the failed rank; if it has none, check for a crash, and check its node",
       ISTHMUS_HERE);
}

void ucx_state::notify(int peer, const control_message& message) {
  while (!m_outgoing.empty() && m_outgoing.front().transfer.is_done) m_outgoing.pop_front();
  if (peer == m_context.rank || m_worker.endpoint_status(peer) != native_status::ok) return;
  outgoing_control_message& outgoing = m_outgoing.emplace_back();
  outgoing.message = message;
  outgoing.message.sender = m_context.rank;
  m_worker.send(outgoing.transfer, peer, make_tag(message_kind::control, m_context.rank, 0), &outgoing.message,
                sizeof outgoing.message);
}

void ucx_state::query_ranks() {
  control_message query;
  query.query_id = ++m_query_id;
  for (int peer = 0; peer < m_context.size; ++peer) notify(peer, query);
}

std::vector<int> ucx_state::unresponsive_ranks() const {
  std::vector<int> unresponsive;
  for (int peer = 0; peer < m_context.size; ++peer)
    if (peer != m_context.rank && m_last_reply[static_cast<std::size_t>(peer)] != m_query_id)
      unresponsive.push_back(peer);
  return unresponsive;
}

int ucx_state::awaited_peer() const {
  for (const peer_flow& each : m_flows)
    if (!each.complete()) return each.peer;
  return -1;
}

// Reports the failure of an endpoint. The runtime checks whether the whole node of the peer has failed.
void ucx_state::fail_lost_peer(int peer, native_status status) {
  m_failed_ranks.assign(1, peer);
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("{}: rank {} exited, destroyed its communicator or is unreachable; rank {} aborted ({})",
                   m_activity, peer, m_context.rank, m_worker.status_text(status)),
       "check that rank for a crash or an early exit, and check its node", ISTHMUS_HERE);
}

void ucx_state::fail_timeout() {
  m_failed_ranks = unresponsive_ranks();
  if (!m_failed_ranks.empty())
    fail(ISTHMUS_ERROR_TIMEOUT,
         fmt::format("{}: rank {} timed out after {} s; {} did not respond (not in a call, stuck, or exited)",
                     m_activity, m_context.rank, m_context.timeout_s, ranks_text(m_failed_ranks)),
         "check that rank and its node; raise timeout_s if it is only slow", ISTHMUS_HERE);
  const int peer = awaited_peer();  // -1 while the end of a call flushes sent data
  const std::string awaited = peer < 0 ? "its sent data to leave" : fmt::format("rank {}", peer);
  if (peer >= 0) m_failed_ranks.push_back(peer);
  fail(ISTHMUS_ERROR_TIMEOUT,
       fmt::format(
           "{}: rank {} timed out after {} s waiting for {}; all ranks respond, so they make different calls",
           m_activity, m_context.rank, m_context.timeout_s, awaited),
       "compare the calls of the ranks with ISTHMUS_CHECK=1", ISTHMUS_HERE);
}

void ucx_state::fail_aborted() {
  m_was_aborted = true;
  fail(ISTHMUS_ERROR_ABORTED,
       fmt::format("{}: the communicator was aborted; rank {} stopped", m_activity, m_context.rank), nullptr,
       ISTHMUS_HERE);
}

void ucx_state::fail(isthmus_status status, const std::string& message, const char* hint,
                     const char* location) {
  throw reported_failure{fail_with_ranks(m_context, m_failed_ranks, status, 0, location, hint, message)};
}

// Notifies all peers, then cancels all transfers, so that nothing writes into the caller's buffers afterwards.
void ucx_state::shut_down() noexcept {
  m_is_shut_down = true;
  try {
    control_message report;
    report.type = control_message::failure;
    report.is_abort = m_was_aborted ? 1 : 0;
    if (m_failed_ranks.empty()) m_failed_ranks.push_back(m_context.rank);
    report.failed_count = static_cast<std::int32_t>(
        std::min<std::size_t>(m_failed_ranks.size(), control_message::max_reported_ranks));
    std::copy_n(m_failed_ranks.begin(), report.failed_count, report.failed_ranks);
    for (int peer = 0; peer < m_context.size; ++peer) notify(peer, report);
    const auto is_sent = [&] {
      return std::ranges::all_of(m_outgoing, [](const auto& each) { return each.transfer.is_done; });
    };
    bool is_flushing = false;
    const auto is_flushed = [&] {
      const auto pending = m_worker.progress() ? poll_result::progress : poll_result::pending;
      if (!is_sent()) return pending;
      const bool has_flushed = is_flushing ? m_worker.is_flushed() : !m_worker.start_flush();
      is_flushing = true;
      return has_flushed ? poll_result::done : pending;
    };
    poll_until(is_flushed, deadline_after(200ms), yielding);
  } catch (...) {
    m_failed_ranks.clear();  // out of memory: the peers will detect that this rank has exited
  }
  for (std::deque<peer_flow>* flows : {&m_flows, &m_messages})
    for (peer_flow& each : *flows)
      for (ucx_transfer& chunk : each.chunks) m_worker.cancel(chunk);
  m_worker.cancel(m_incoming_transfer);
  m_worker.close(2);
  if (m_worker.open_transfers() > 0)
    m_context.log(m_context.runtime, 2, "UCX did not end %zu transfers of a failed call of rank %d",
                  m_worker.open_transfers(), m_context.rank);
}

}  // namespace isthmus::ucx
