#include "backends/copy_engine/call_watchdog.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace isthmus::copy_engine {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

constexpr auto poll_interval = 20ms;
constexpr auto release_limit = 10s;
constexpr auto poll_limit = 20ms;    // of one look
constexpr auto reason_wait_limit = 1s;     // of a wait for that
constexpr auto peer_release_time = 600ms;  // in which every rank that runs has looked once, and released its stream

}  // namespace

call_watchdog::call_watchdog(const isthmus_backend_context& context, rank_resources& resources, const call_log& log)
    : m_context(context),
      m_resources(resources),
      m_log(log),
      m_monitor(resources.driver, resources.device, peer_memory::flags.words(), {stream_priority::high}) {}

void call_watchdog::fail(call_failure failure) {
  {
    const std::lock_guard lock(m_mutex);
    if (m_reason) return;
    m_reason = std::move(failure);
  }
  m_has_failed.store(true, std::memory_order_release);
}

std::optional<call_failure> call_watchdog::reason() const {
  std::unique_lock lock(m_mutex);
  if (m_watch) m_changed.wait_for(lock, reason_wait_limit, [this] { return m_is_reason_public; });
  return m_reason;
}

void call_watchdog::begin() {
  m_monitor.attach(m_resources.memory.channel(), m_resources.rank);
  watch_options options;
  options.timeout = seconds(m_context.timeout_s);
  options.interval = poll_interval;
  options.operation = [this]() -> watched_operation { return {current_call(), {}}; };
  options.on_wait = [this](std::uint64_t id) { inspect(static_cast<std::uint32_t>(id)); };
  options.on_stuck = [this](std::uint64_t id) {
    if (!is_still_stuck(static_cast<std::uint32_t>(id))) return false;
    report_timeout(static_cast<std::uint32_t>(id));
    return true;
  };
  options.aborted = [this] { return check_abort(); };
  options.on_abort = [this] {
    release();
    return false;  // more may come to the stream later
  };
  options.on_error = [this](const char* what) {
    fail({ISTHMUS_ERROR_BACKEND, std::string("the device failed: ") + what, ""});
  };
  m_watch.emplace(std::move(options));
}

void call_watchdog::request_abort() {
  m_is_abort_requested.store(true, std::memory_order_release);
  if (!m_watch) return;
  m_watch->wake();
  reason();
}

bool call_watchdog::check_abort() {
  if (m_is_abort_requested.load(std::memory_order_acquire) && !has_failed())
    fail({ISTHMUS_ERROR_ABORTED, "the communicator was aborted", ""});
  return has_failed();
}

// A captured call has the same id each time that it is replayed. Between two replays the word is zero for a
// moment, which sampling misses but a close look does not.
bool call_watchdog::is_still_stuck(std::uint32_t id) const {
  const auto end = clock::now() + poll_limit;
  while (clock::now() < end)
    if (current_call() != id) return false;
  return true;
}

bool call_watchdog::are_all_acknowledged() {
  if (!m_monitor.read()) return false;
  for (const transfer_slot slot : all_slots)
    for (int reader = 0; reader < m_resources.size; ++reader)
      if (m_monitor.acknowledgement(static_cast<std::size_t>(slot), reader) != 0) return false;
  return true;
}

void call_watchdog::inspect(std::uint32_t id) {
  if (!m_monitor.read()) return;
  if (const std::uint32_t peer = m_monitor.aborted_peer(); peer != 0)
    return fail({ISTHMUS_ERROR_REMOTE,
                    fmt::format("rank {} gave up while {}{}", peer - 1, describe_call(id), describe_missing_ranks(id)),
                    "see the error that this rank reports"});
  const auto record = m_log.find(id);
  if (!record || !is_mismatch(*record)) {
    m_mismatch_candidate = 0;
  } else if (m_mismatch_candidate != id) {
    m_mismatch_candidate = id;
  } else if (is_still_stuck(id)) {
    fail(
        {ISTHMUS_ERROR_MISMATCH,
         fmt::format("{}, but its peers are in another call: they differ in collective, bytes, root, algorithm "
                     "or place in the symmetric heap",
                     describe_call(id)),
         "call the same collectives in the same order, and with heap buffers at the same place of the same "
         "block "
         "on every rank; where buffers lie elsewhere on some rank, name copy_engine:staged"});
  }
}

// Every peer that this call fetches from has signalled something else. One that has not may have been served
// already and be in the next call, so fewer prove nothing.
bool call_watchdog::is_mismatch(const call_record& record) const {
  bool has_source = false;
  for (int source = 0; source < m_resources.size; ++source) {
    const std::uint32_t tag = record.tags[static_cast<std::size_t>(source)];
    if (tag == 0) continue;
    has_source = true;
    bool has_other_tag = false;
    for (const transfer_slot slot : all_slots) {
      const std::uint32_t seen = ready(slot, source);
      const bool is_match = record.staged == (slot != transfer_slot::direct) && seen == tag;
      if (is_match) return false;
      has_other_tag = has_other_tag || seen != 0;
    }
    if (!has_other_tag) return false;
  }
  return has_source;
}

std::string call_watchdog::describe_call(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record) return fmt::format("rank {} waits in a call that is no longer known", m_resources.rank);
  return fmt::format("rank {} waits in {} of {} x {} ({})", m_resources.rank,
                     isthmus_collective_name(record->collective), record->count,
                     isthmus_datatype_name(record->datatype),
                     record->staged ? "staged" : "out of the symmetric heap");
}

// Who has neither signalled nor taken what it was handed; where nothing was, who has not signalled.
std::string call_watchdog::describe_missing_ranks(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record || !m_monitor.read()) return "";
  std::string without_signal, without_signal_or_fetch;
  for (int peer = 0; peer < m_resources.size; ++peer) {
    const bool is_source = record->tags[static_cast<std::size_t>(peer)] != 0;
    std::uint32_t seen = 0, pending = 0;
    for (const transfer_slot slot : all_slots) {
      seen |= ready(slot, peer);
      pending |= m_monitor.acknowledgement(static_cast<std::size_t>(slot), peer);
    }
    if (is_source && seen == 0) without_signal += fmt::format("{}{}", without_signal.empty() ? "" : ", ", peer);
    if (pending != 0 && seen == 0) without_signal_or_fetch += fmt::format("{}{}", without_signal_or_fetch.empty() ? "" : ", ", peer);
  }
  const std::string& ranks = without_signal_or_fetch.empty() ? without_signal : without_signal_or_fetch;
  return ranks.empty() ? "" : fmt::format("; no signal from rank(s) {}", ranks);
}

void call_watchdog::report_timeout(std::uint32_t id) {
  fail({ISTHMUS_ERROR_TIMEOUT,
           fmt::format("{} for longer than the timeout of {:g} s{}", describe_call(id), m_context.timeout_s,
                       describe_missing_ranks(id)),
           "did every rank call the same collective? timeout_s in the config raises the bound"});
}

// ---- letting go -------------------------------------------------------------------------------------

void call_watchdog::write_release_flags(std::uint32_t id) {
  std::vector<word_step> flags;
  if (const auto record = m_log.find(id))
    for (int source = 0; source < m_resources.size; ++source)
      if (const std::uint32_t tag = record->tags[static_cast<std::size_t>(source)]; tag != 0)
        for (const transfer_slot slot : all_slots)
          if (record->staged == (slot != transfer_slot::direct))
            flags.push_back({word_action::write, m_resources.memory.ready(m_resources.rank, slot, source), tag});
  for (const transfer_slot slot : all_slots)
    for (int peer = 0; peer < m_resources.size; ++peer)
      if (peer != m_resources.rank)
        flags.push_back({word_action::write, m_resources.memory.pending(m_resources.rank, slot, peer), 0});
  m_monitor.write(flags);
}

// A peer that comes late would find that this rank's buffers are ready, and push into them.
void call_watchdog::fence_late_ranks() {
  std::vector<word_step> steps;
  for (int peer = 0; peer < m_resources.size; ++peer)
    if (peer != m_resources.rank)
      for (const transfer_slot slot : all_slots)
        steps.push_back({word_action::write, m_resources.memory.ready(peer, slot, m_resources.rank), 0});
  m_monitor.write(steps);
  m_monitor.notify_abort();
  m_notified_at = clock::now();
  // The word alone does not tell: between two calls it is zero, and the stream comes to the next by itself.
  m_may_be_in_call = !m_log.is_empty();
}

// Peers that are in this call release their own streams when they hear of it, which then push: until that is
// over nobody may take the error for leave to use the buffers.
void call_watchdog::publish_reason_when_safe() {
  if (m_may_be_in_call && clock::now() - *m_notified_at < peer_release_time) return;
  {
    const std::lock_guard lock(m_mutex);
    m_is_reason_public = true;
  }
  m_changed.notify_all();
}

// Call by call until the stream has passed everything that it was given; a part of that in each look. More
// may come to it later, behind a long kernel.
void call_watchdog::release() {
  if (!m_notified_at) fence_late_ranks();
  publish_reason_when_safe();
  const auto now = clock::now(), end = now + poll_limit;
  for (std::uint32_t id = current_call(); id != 0 && clock::now() < end; id = current_call()) {
    write_release_flags(id);
    if (!m_monitor.wait_briefly()) break;
  }
  if (current_call() == 0) {
    m_release_since.reset();
    return;
  }
  if (!m_release_since) m_release_since = now;
  if (now - *m_release_since > release_limit && !std::exchange(m_has_warned, true))
    m_context.log(
        m_context.runtime, 2,
        "a stream could not be released within %d s: it waits for a word, and so does whoever waits for it",
        static_cast<int>(std::chrono::seconds(release_limit).count()));
}

}  // namespace isthmus::copy_engine
