// How a rank waits: it notices failures, hears what the others say, and asks who is still there.
#include <fmt/format.h>
#include <isthmus/isthmus.h>
#include <sched.h>

#include <algorithm>
#include <ctime>
#include <isthmus/plugin.hpp>
#include <thread>

#include "backends/ucx/ucx_state.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace isthmus::ucx {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t rounds_per_progress = 64;
constexpr auto yield_time = 5ms;  // how long a wait only yields before it sleeps between looks
constexpr timespec nap{0, 50'000};
constexpr int whole_communicator = -1;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_list(ranks));
}

}  // namespace

void ucx_state::begin_wait() {
  m_wait_rounds = 0;
  m_is_long_wait = m_has_queried = false;
}

void ucx_state::back_off() {
  if (++m_wait_rounds < m_settings.spin_limit) {
    if (m_wait_rounds % rounds_per_progress == 0 && m_context.progress != nullptr)
      m_context.progress(m_context.runtime);
    return;
  }
  poll_failures();
  const auto now = clock::now();
  if (!m_is_long_wait) {
    m_is_long_wait = true;
    m_wait_begin = now;
  }
  const double waited = std::chrono::duration<double>(now - m_wait_begin).count();
  // Halfway all are asked, so that at the end it is known who says nothing.
  if (waited > m_context.timeout_s / 2 && !m_has_queried) {
    m_has_queried = true;
    ask(static_cast<std::uint64_t>(whole_communicator));
  }
  if (waited > m_context.timeout_s) fail_timeout();
  const bool has_work = m_context.progress != nullptr && m_context.progress(m_context.runtime) != 0;
  if (has_work || now - m_wait_begin < yield_time)
    ::sched_yield();
  else
    ::nanosleep(&nap, nullptr);
}

void ucx_state::poll_failures() {
  if (m_abort.load(std::memory_order_acquire) || m_context.is_aborted(m_context.runtime) != 0) fail_aborted();
  poll_control_messages();
  if (m_worker.failed_endpoints() == 0) return;
  for (const peer_flow& each : m_flows) {
    if (each.complete() || m_worker.endpoint_status(each.peer) == native_status::ok) continue;
    // What it sent last may be on its way: it is looked at twice.
    if (m_seen_failures != m_worker.failed_endpoints()) {
      m_seen_failures = m_worker.failed_endpoints();
      return;
    }
    fail_lost_peer(each.peer, m_worker.endpoint_status(each.peer));
  }
}

void ucx_state::poll_control_messages() {
  if (!m_hears) {
    m_hears = true;
    m_worker.receive(m_hearing, make_tag(message_kind::control, 0, 0), kind_mask, &m_incoming, sizeof m_incoming);
  }
  while (m_hearing.is_done) {
    const bool is_whole = m_hearing.status == native_status::ok && m_hearing.received_bytes == sizeof m_incoming;
    const control_message heard = m_incoming;
    m_worker.receive(m_hearing, make_tag(message_kind::control, 0, 0), kind_mask, &m_incoming, sizeof m_incoming);
    if (is_whole) heed(heard);
  }
}

void ucx_state::heed(const control_message& heard) {
  if (heard.from < 0 || heard.from >= m_context.size) return;
  if (heard.what == control_message::question) {
    control_message reply;
    reply.what = control_message::answer;
    reply.roll = heard.roll;
    reply.awaits = awaited_peer();
    return tell(heard.from, reply);
  }
  if (heard.what == control_message::answer) {
    m_last_reply[static_cast<std::size_t>(heard.from)] = heard.roll;
    return;
  }
  m_culprits.assign(heard.culprit, heard.culprit + std::clamp(heard.culprits, 0, 16));
  m_is_abort = heard.is_abort != 0;
  if (m_is_abort)
    fail(ISTHMUS_ERROR_ABORTED,
         fmt::format("rank {} aborted the communicator; rank {} gave up in {}", heard.from, m_context.rank,
                     m_activity),
         nullptr, ISTHMUS_HERE);
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("{} failed or vanished, says rank {}; rank {} gave up in {}", ranks_text(m_culprits),
                   heard.from, m_context.rank, m_activity),
       "see the first error of that rank; if it has none, look for a crash, or at its machine", ISTHMUS_HERE);
}

void ucx_state::tell(int peer, const control_message& told) {
  while (!m_told.empty() && m_told.front().moving.is_done) m_told.pop_front();
  if (peer == m_context.rank || m_worker.endpoint_status(peer) != native_status::ok) return;
  sent_notice& sent = m_told.emplace_back();
  sent.told = told;
  sent.told.from = m_context.rank;
  m_worker.send(sent.moving, peer, make_tag(message_kind::control, m_context.rank, 0), &sent.told, sizeof sent.told);
}

// All ranks, or those of one machine.
void ucx_state::ask(std::uint64_t node) {
  control_message question;
  question.roll = ++m_query_id;
  for (int peer = 0; peer < m_context.size; ++peer)
    if (node == static_cast<std::uint64_t>(whole_communicator) ||
        static_cast<std::uint64_t>(m_context.node_of[peer]) == node)
      tell(peer, question);
}

std::vector<int> ucx_state::unresponsive_ranks(int node) const {
  std::vector<int> silent;
  for (int peer = 0; peer < m_context.size; ++peer)
    if (peer != m_context.rank && (node == whole_communicator || m_context.node_of[peer] == node) &&
        m_last_reply[static_cast<std::size_t>(peer)] != m_query_id)
      silent.push_back(peer);
  return silent;
}

int ucx_state::awaited_peer() const {
  for (const peer_flow& each : m_flows)
    if (!each.complete()) return each.peer;
  return -1;
}

// The endpoint of a rank has failed: with it the rank, or its machine.
void ucx_state::fail_lost_peer(int peer, native_status status) {
  const int node = m_context.node_of[peer];
  m_culprits.assign(1, peer);
  ask(static_cast<std::uint64_t>(node));
  const auto deadline = clock::now() + std::chrono::duration<double>(std::min(1.0, m_context.timeout_s / 10));
  const bool has_others = std::count(m_context.node_of, m_context.node_of + m_context.size, node) > 1;
  while (has_others && node != m_context.node_of[m_context.rank] && clock::now() < deadline) {
    poll_control_messages();
    if (unresponsive_ranks(node).size() <= 1) break;
    if (!m_worker.progress()) ::nanosleep(&nap, nullptr);
  }
  std::string others;
  if (node != m_context.node_of[m_context.rank]) {
    std::vector<int> silent = unresponsive_ranks(node);
    std::erase(silent, peer);
    if (!silent.empty()) others = fmt::format("; of its machine {} did not answer either", ranks_text(silent));
    m_culprits.insert(m_culprits.end(), silent.begin(), silent.end());
    std::ranges::sort(m_culprits);
  }
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("rank {} exited, destroyed its communicator or can't be reached any more, while rank {} was "
                   "in {} ({}){}",
                   peer, m_context.rank, m_activity, m_worker.status_text(status), others),
       "look for a crash or an early exit of that rank, and at its machine", ISTHMUS_HERE);
}

void ucx_state::fail_timeout() {
  m_culprits = unresponsive_ranks(whole_communicator);
  if (!m_culprits.empty())
    fail(ISTHMUS_ERROR_TIMEOUT,
         fmt::format("rank {} waited more than {} s in {}; {} did not answer: in no call, stuck, or gone",
                     m_context.rank, m_context.timeout_s, m_activity, ranks_text(m_culprits)),
         "look at that rank and its machine; raise timeout_s if it only needs longer", ISTHMUS_HERE);
  const int peer = awaited_peer();  // nobody while the end of a call pushes out what was sent
  const std::string whom = peer < 0 ? "what it sent to leave" : fmt::format("rank {}", peer);
  if (peer >= 0) m_culprits.push_back(peer);
  fail(ISTHMUS_ERROR_TIMEOUT,
       fmt::format("rank {} waited more than {} s for {} in {}; all ranks answer, so they make different calls",
                   m_context.rank, m_context.timeout_s, whom, m_activity),
       "compare what the ranks call (ISTHMUS_CHECK=1)", ISTHMUS_HERE);
}

void ucx_state::fail_aborted() {
  m_is_abort = true;
  fail(ISTHMUS_ERROR_ABORTED,
       fmt::format("the communicator was aborted; rank {} gave up in {}", m_context.rank, m_activity), nullptr,
       ISTHMUS_HERE);
}

void ucx_state::fail(isthmus_status status, const std::string& message, const char* hint, const char* location) {
  throw failure{fail_with_ranks(m_context, m_culprits, status, 0, location, hint, message)};
}

// The others hear of it, and from then on nobody writes into the caller's buffers.
void ucx_state::shut_down() noexcept {
  m_is_shut_down = true;
  try {
    control_message told;
    told.what = control_message::failed;
    told.is_abort = m_is_abort ? 1 : 0;
    if (m_culprits.empty()) m_culprits.push_back(m_context.rank);
    told.culprits = static_cast<std::int32_t>(std::min<std::size_t>(m_culprits.size(), 16));
    std::copy_n(m_culprits.begin(), told.culprits, told.culprit);
    for (int peer = 0; peer < m_context.size; ++peer) tell(peer, told);
    const auto deadline = clock::now() + 200ms;
    const auto is_out = [&] {
      return std::ranges::all_of(m_told, [](const auto& each) { return each.moving.is_done; });
    };
    for (bool flushing = false, flushed = false; !flushed && clock::now() < deadline;) {
      if (!m_worker.progress()) std::this_thread::yield();
      if (!is_out()) continue;
      flushed = flushing ? m_worker.is_flushed() : !m_worker.start_flush();
      flushing = true;
    }
  } catch (...) {
    m_culprits.clear();  // no memory to tell the others, which notice that this rank is gone
  }
  for (std::deque<peer_flow>* flows : {&m_flows, &m_messages})
    for (peer_flow& each : *flows)
      for (ucx_transfer& chunk : each.chunks) m_worker.cancel(chunk);
  m_worker.cancel(m_hearing);
  m_worker.close(2);
  if (m_worker.open_transfers() > 0)
    m_context.log(m_context.runtime, 2, "UCX has not ended %zu transfers of a failed call of rank %d",
                  m_worker.open_transfers(), m_context.rank);
}

}  // namespace isthmus::ucx
