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

// ---- control messages ---------------------------------------------------------------------------------

void control_channel::receive_next() {
  m_is_receiving = true;
  m_worker.receive(m_incoming_transfer, make_tag(message_kind::control, 0, 0), kind_mask, &m_incoming,
                   sizeof m_incoming);
}

std::optional<control_message> control_channel::poll() {
  if (!m_is_receiving) receive_next();
  while (m_incoming_transfer.is_done) {
    const bool is_complete = m_incoming_transfer.status == native_status::ok &&
                             m_incoming_transfer.received_bytes == sizeof m_incoming;
    const control_message message = m_incoming;
    receive_next();
    if (!is_complete || message.sender < 0 || message.sender >= static_cast<int>(m_last_reply.size())) continue;
    if (message.type == control_message::query) {
      control_message reply;
      reply.type = control_message::reply;
      reply.query_id = message.query_id;
      notify(message.sender, reply);
    } else if (message.type == control_message::reply) {
      m_last_reply[static_cast<std::size_t>(message.sender)] = message.query_id;
    } else {
      return message;
    }
  }
  return std::nullopt;
}

void control_channel::notify(int peer, const control_message& message) {
  while (!m_outgoing.empty() && m_outgoing.front().transfer.is_done) m_outgoing.pop_front();
  if (peer == m_rank || m_worker.endpoint_status(peer) != native_status::ok) return;
  outgoing_message& outgoing = m_outgoing.emplace_back();
  outgoing.message = message;
  outgoing.message.sender = m_rank;
  m_worker.send(outgoing.transfer, peer, make_tag(message_kind::control, m_rank, 0), &outgoing.message,
                sizeof outgoing.message);
}

void control_channel::notify_all(const control_message& message) {
  for (int peer = 0; peer < static_cast<int>(m_last_reply.size()); ++peer) notify(peer, message);
}

bool control_channel::is_sent() const {
  return std::ranges::all_of(m_outgoing, [](const auto& each) { return each.transfer.is_done; });
}

void control_channel::query_ranks() {
  control_message query;
  query.query_id = ++m_query_id;
  notify_all(query);
}

std::vector<int> control_channel::unresponsive_ranks() const {
  std::vector<int> unresponsive;
  for (int peer = 0; peer < static_cast<int>(m_last_reply.size()); ++peer)
    if (peer != m_rank && m_last_reply[static_cast<std::size_t>(peer)] != m_query_id)
      unresponsive.push_back(peer);
  return unresponsive;
}

// ---- waits --------------------------------------------------------------------------------------------

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
    m_control.query_ranks();
  }
  if (wait_s > m_context.timeout_s) fail_timeout();
  const bool has_work = m_context.progress(m_context.runtime) != 0;
  m_backoff.pause(has_work);
}

void ucx_state::poll_failures() {
  if (m_abort.load(std::memory_order_acquire) || m_context.is_aborted(m_context.runtime) != 0) fail_aborted();
  if (const auto report = m_control.poll()) fail_reported(*report);
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

void ucx_state::fail_reported(const control_message& report) {
  m_failed_ranks.assign(
      report.failed_ranks,
      report.failed_ranks + std::clamp(report.failed_count, 0, control_message::max_reported_ranks));
  m_was_aborted = report.is_abort != 0;
  if (m_was_aborted)
    fail(ISTHMUS_ERROR_ABORTED,
         fmt::format("{}: rank {} aborted the communicator; rank {} stopped", m_activity, report.sender,
                     m_context.rank),
         nullptr, ISTHMUS_HERE);
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("{}: {} failed (reported by rank {}); rank {} aborted", m_activity,
                   ranks_text(m_failed_ranks), report.sender, m_context.rank),
       "look for the first error of the failed rank; if it has none, check for a crash, and check its node",
       ISTHMUS_HERE);
}

int ucx_state::awaited_peer() const {
  for (const peer_flow& each : m_flows)
    if (!each.complete()) return each.peer;
  return -1;
}

// Without a store, the runtime cannot query the ranks of other nodes, so queries them here. Returns a clause about the
// ranks of the same node that do not respond. They only appear in the text, because they may be busy.
std::string ucx_state::unresponsive_node_text(int lost_peer) {
  const int node = m_context.node_of[lost_peer];
  if (m_context.mpi == nullptr || node == m_context.node_of[m_context.rank]) return {};
  std::vector<int> node_peers;
  const auto find_unresponsive = [&] {
    node_peers = m_control.unresponsive_ranks();
    std::erase_if(node_peers, [&](int peer) { return peer == lost_peer || m_context.node_of[peer] != node; });
    return !node_peers.empty();
  };
  m_control.query_ranks();
  const auto have_replied = [&] {
    m_control.poll();
    if (!find_unresponsive()) return poll_result::done;
    return m_worker.progress() ? poll_result::progress : poll_result::pending;
  };
  if (poll_until(have_replied, deadline_after(std::min(1.0, m_context.timeout_s / 10)), 50us)) return {};
  return fmt::format("; {} of the same node did not respond either", ranks_text(node_peers));
}

// Reports the failure of an endpoint. The runtime checks whether the whole node of the peer has failed.
void ucx_state::fail_lost_peer(int peer, native_status status) {
  m_failed_ranks.assign(1, peer);
  fail(
      ISTHMUS_ERROR_REMOTE,
      fmt::format("{}: rank {} exited, destroyed its communicator or is unreachable; rank {} aborted ({}){}",
                  m_activity, peer, m_context.rank, m_worker.status_text(status), unresponsive_node_text(peer)),
      "check that rank for a crash or an early exit, and check its node", ISTHMUS_HERE);
}

void ucx_state::fail_timeout() {
  m_failed_ranks = m_control.unresponsive_ranks();
  if (!m_failed_ranks.empty())
    fail(ISTHMUS_ERROR_TIMEOUT,
         fmt::format("{}: rank {} timed out after {} s; {} did not respond (not in a call, stuck, or exited)",
                     m_activity, m_context.rank, m_context.timeout_s, ranks_text(m_failed_ranks)),
         "check that rank and its node; raise timeout_s if it is only slow", ISTHMUS_HERE);
  const int peer = awaited_peer();  // -1 while the end of a call flushes sent data
  const std::string awaited = peer < 0 ? "its sent data to leave" : fmt::format("rank {}", peer);
  if (peer >= 0) m_failed_ranks.push_back(peer);
  fail(ISTHMUS_ERROR_TIMEOUT,
       fmt::format("{}: rank {} timed out after {} s waiting for {}; all ranks respond: their calls differ, or "
                   "the network was interrupted",
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
    m_control.notify_all(report);
    bool is_flushing = false;
    const auto is_flushed = [&] {
      const auto pending = m_worker.progress() ? poll_result::progress : poll_result::pending;
      if (!m_control.is_sent()) return pending;
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
  m_control.cancel();
  m_worker.close(2);
  if (m_worker.open_transfers() > 0)
    m_context.log(m_context.runtime, 2, "UCX did not end %zu transfers of a failed call of rank %d",
                  m_worker.open_transfers(), m_context.rank);
}

}  // namespace isthmus::ucx
