// How a rank waits: it notices failures, hears what the others say, and asks who is still there.
#include <fmt/format.h>
#include <isthmus/isthmus.h>
#include <sched.h>

#include <algorithm>
#include <ctime>
#include <isthmus/plugin.hpp>
#include <thread>

#include "backends/ucx/session.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace isthmus::ucx {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t spins_per_progress = 64;
constexpr auto yield_time = 5ms;  // how long a wait only yields before it sleeps between looks
constexpr timespec nap{0, 50'000};
constexpr int whole_communicator = -1;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_list(ranks));
}

}  // namespace

void session::begin_wait() {
  m_rounds = 0;
  m_is_long = m_has_asked = false;
}

void session::pause() {
  if (++m_rounds < m_tuned.spins) {
    if (m_rounds % spins_per_progress == 0 && m_context.progress != nullptr)
      m_context.progress(m_context.runtime);
    return;
  }
  look();
  const auto now = clock::now();
  if (!m_is_long) {
    m_is_long = true;
    m_begin = now;
  }
  const double waited = std::chrono::duration<double>(now - m_begin).count();
  // Halfway all are asked, so that at the end it is known who says nothing.
  if (waited > m_context.timeout_s / 2 && !m_has_asked) {
    m_has_asked = true;
    ask(static_cast<std::uint64_t>(whole_communicator));
  }
  if (waited > m_context.timeout_s) time_out();
  const bool has_work = m_context.progress != nullptr && m_context.progress(m_context.runtime) != 0;
  if (has_work || now - m_begin < yield_time)
    ::sched_yield();
  else
    ::nanosleep(&nap, nullptr);
}

void session::look() {
  if (m_abort.load(std::memory_order_acquire) || m_context.is_aborted(m_context.runtime) != 0) end_as_aborted();
  hear();
  if (m_worker.failures() == 0) return;
  for (const flow& each : m_flows) {
    if (each.complete() || m_worker.failure_of_peer(each.peer) == native_status::ok) continue;
    // What it sent last may be on its way: it is looked at twice.
    if (m_seen_failures != m_worker.failures()) {
      m_seen_failures = m_worker.failures();
      return;
    }
    lose(each.peer, m_worker.failure_of_peer(each.peer));
  }
}

void session::hear() {
  if (!m_hears) {
    m_hears = true;
    m_worker.receive(m_hearing, make_tag(kind::notice, 0, 0), kind_of_tag, &m_heard, sizeof m_heard);
  }
  while (m_hearing.done) {
    const bool is_whole = m_hearing.status == native_status::ok && m_hearing.arrived == sizeof m_heard;
    const notice heard = m_heard;
    m_worker.receive(m_hearing, make_tag(kind::notice, 0, 0), kind_of_tag, &m_heard, sizeof m_heard);
    if (is_whole) heed(heard);
  }
}

void session::heed(const notice& heard) {
  if (heard.from < 0 || heard.from >= m_context.size) return;
  if (heard.what == notice::question) {
    notice reply;
    reply.what = notice::answer;
    reply.roll = heard.roll;
    reply.awaits = awaited();
    return tell(heard.from, reply);
  }
  if (heard.what == notice::answer) {
    m_answered[static_cast<std::size_t>(heard.from)] = heard.roll;
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

void session::tell(int peer, const notice& told) {
  while (!m_told.empty() && m_told.front().moving.done) m_told.pop_front();
  if (peer == m_context.rank || m_worker.failure_of_peer(peer) != native_status::ok) return;
  sent_notice& sent = m_told.emplace_back();
  sent.told = told;
  sent.told.from = m_context.rank;
  m_worker.send(sent.moving, peer, make_tag(kind::notice, m_context.rank, 0), &sent.told, sizeof sent.told);
}

// All ranks, or those of one machine.
void session::ask(std::uint64_t node) {
  notice question;
  question.roll = ++m_roll;
  for (int peer = 0; peer < m_context.size; ++peer)
    if (node == static_cast<std::uint64_t>(whole_communicator) ||
        static_cast<std::uint64_t>(m_context.node_of[peer]) == node)
      tell(peer, question);
}

std::vector<int> session::silent_ranks(int node) const {
  std::vector<int> silent;
  for (int peer = 0; peer < m_context.size; ++peer)
    if (peer != m_context.rank && (node == whole_communicator || m_context.node_of[peer] == node) &&
        m_answered[static_cast<std::size_t>(peer)] != m_roll)
      silent.push_back(peer);
  return silent;
}

int session::awaited() const {
  for (const flow& each : m_flows)
    if (!each.complete()) return each.peer;
  return -1;
}

// The endpoint of a rank has failed: with it the rank, or its machine.
void session::lose(int peer, native_status status) {
  const int node = m_context.node_of[peer];
  m_culprits.assign(1, peer);
  ask(static_cast<std::uint64_t>(node));
  const auto deadline = clock::now() + std::chrono::duration<double>(std::min(1.0, m_context.timeout_s / 10));
  const bool has_others = std::count(m_context.node_of, m_context.node_of + m_context.size, node) > 1;
  while (has_others && node != m_context.node_of[m_context.rank] && clock::now() < deadline) {
    hear();
    if (silent_ranks(node).size() <= 1) break;
    if (!m_worker.progress()) ::nanosleep(&nap, nullptr);
  }
  std::string others;
  if (node != m_context.node_of[m_context.rank]) {
    std::vector<int> silent = silent_ranks(node);
    std::erase(silent, peer);
    if (!silent.empty()) others = fmt::format("; of its machine {} did not answer either", ranks_text(silent));
    m_culprits.insert(m_culprits.end(), silent.begin(), silent.end());
    std::ranges::sort(m_culprits);
  }
  fail(ISTHMUS_ERROR_REMOTE,
       fmt::format("rank {} exited, destroyed its communicator or can't be reached any more, while rank {} was "
                   "in {} ({}){}",
                   peer, m_context.rank, m_activity, m_worker.text_of(status), others),
       "look for a crash or an early exit of that rank, and at its machine", ISTHMUS_HERE);
}

void session::time_out() {
  m_culprits = silent_ranks(whole_communicator);
  if (!m_culprits.empty())
    fail(ISTHMUS_ERROR_TIMEOUT,
         fmt::format("rank {} waited more than {} s in {}; {} did not answer: in no call, stuck, or gone",
                     m_context.rank, m_context.timeout_s, m_activity, ranks_text(m_culprits)),
         "look at that rank and its machine; raise timeout_s if it only needs longer", ISTHMUS_HERE);
  const int peer = awaited();  // nobody while the end of a call pushes out what was sent
  const std::string whom = peer < 0 ? "what it sent to leave" : fmt::format("rank {}", peer);
  if (peer >= 0) m_culprits.push_back(peer);
  fail(ISTHMUS_ERROR_TIMEOUT,
       fmt::format("rank {} waited more than {} s for {} in {}; all ranks answer, so they make different calls",
                   m_context.rank, m_context.timeout_s, whom, m_activity),
       "compare what the ranks call (ISTHMUS_CHECK=1)", ISTHMUS_HERE);
}

void session::end_as_aborted() {
  m_is_abort = true;
  fail(ISTHMUS_ERROR_ABORTED,
       fmt::format("the communicator was aborted; rank {} gave up in {}", m_context.rank, m_activity), nullptr,
       ISTHMUS_HERE);
}

void session::fail(isthmus_status status, const std::string& message, const char* hint, const char* location) {
  throw failure{fail_with_ranks(m_context, m_culprits, status, 0, location, hint, message)};
}

// The others hear of it, and from then on nobody writes into the caller's buffers.
void session::give_up() noexcept {
  m_ended = true;
  try {
    notice told;
    told.what = notice::failed;
    told.is_abort = m_is_abort ? 1 : 0;
    if (m_culprits.empty()) m_culprits.push_back(m_context.rank);
    told.culprits = static_cast<std::int32_t>(std::min<std::size_t>(m_culprits.size(), 16));
    std::copy_n(m_culprits.begin(), told.culprits, told.culprit);
    for (int peer = 0; peer < m_context.size; ++peer) tell(peer, told);
    const auto deadline = clock::now() + 200ms;
    const auto is_out = [&] {
      return std::ranges::all_of(m_told, [](const auto& each) { return each.moving.done; });
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
  for (std::deque<flow>* flows : {&m_flows, &m_messages})
    for (flow& each : *flows)
      for (transfer& piece : each.pieces) m_worker.cancel(piece);
  m_worker.cancel(m_hearing);
  m_worker.close(2);
  if (m_worker.open_transfers() > 0)
    m_context.log(m_context.runtime, 2, "UCX has not ended %zu transfers of a failed call of rank %d",
                  m_worker.open_transfers(), m_context.rank);
}

}  // namespace isthmus::ucx
