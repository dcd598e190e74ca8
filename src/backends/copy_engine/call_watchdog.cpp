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

constexpr auto between_looks = 20ms;
constexpr auto release_limit = 10s;
constexpr auto round_limit = 20ms;    // of one look
constexpr auto settle_limit = 1s;     // of a wait for that
constexpr auto hearing_time = 600ms;  // in which every rank that runs has looked once, and released its stream

}  // namespace

call_watchdog::call_watchdog(const isthmus_backend_context& context, rank_resources& resources, const call_log& log)
    : m_context(context),
      m_resources(resources),
      m_log(log),
      m_monitor(resources.driver, resources.device, peer_memory::flags.words(), {stream_priority::high}) {}

void call_watchdog::give_up(failure why) {
  {
    const std::lock_guard lock(m_mutex);
    if (m_reason) return;
    m_reason = std::move(why);
  }
  m_failed.store(true, std::memory_order_release);
}

std::optional<failure> call_watchdog::reason() const {
  std::unique_lock lock(m_mutex);
  if (m_watch) m_changed.wait_for(lock, settle_limit, [this] { return m_settled; });
  return m_reason;
}

void call_watchdog::begin() {
  m_monitor.attach(m_resources.memory.channel(), m_resources.rank);
  watch_rules rules;
  rules.timeout = seconds(m_context.timeout_s);
  rules.interval = between_looks;
  rules.operation = [this]() -> watched_operation { return {current(), {}}; };
  rules.on_wait = [this](std::uint64_t id) { inspect(static_cast<std::uint32_t>(id)); };
  rules.on_stuck = [this](std::uint64_t id) {
    if (!still_stuck(static_cast<std::uint32_t>(id))) return false;
    time_out(static_cast<std::uint32_t>(id));
    return true;
  };
  rules.aborted = [this] { return notice_abort(); };
  rules.on_abort = [this] {
    release();
    return false;  // more may come to the stream later
  };
  rules.on_error = [this](const char* what) {
    give_up({ISTHMUS_ERROR_BACKEND, std::string("the device failed: ") + what, ""});
  };
  m_watch.emplace(std::move(rules));
}

void call_watchdog::request_abort() {
  m_abort.store(true, std::memory_order_release);
  if (!m_watch) return;
  m_watch->wake();
  reason();
}

bool call_watchdog::notice_abort() {
  if (m_abort.load(std::memory_order_acquire) && !failed())
    give_up({ISTHMUS_ERROR_ABORTED, "the communicator was aborted", ""});
  return failed();
}

// A captured call has the same id each time that it is replayed. Between two replays the word is zero for a
// moment, which sampling misses but a close look does not.
bool call_watchdog::still_stuck(std::uint32_t id) const {
  const auto end = clock::now() + round_limit;
  while (clock::now() < end)
    if (current() != id) return false;
  return true;
}

bool call_watchdog::all_acknowledged() {
  if (!m_monitor.read()) return false;
  for (const transfer_slot slot : all_slots)
    for (int reader = 0; reader < m_resources.size; ++reader)
      if (m_monitor.acknowledgement(static_cast<std::size_t>(slot), reader) != 0) return false;
  return true;
}

void call_watchdog::inspect(std::uint32_t id) {
  if (!m_monitor.read()) return;
  if (const std::uint32_t peer = m_monitor.gave_up(); peer != 0)
    return give_up({ISTHMUS_ERROR_REMOTE,
                    fmt::format("rank {} gave up while {}{}", peer - 1, story_of(id), awaited_in(id)),
                    "see the error that this rank reports"});
  const auto record = m_log.find(id);
  if (!record || !is_mismatch(*record)) {
    m_suspect = 0;
  } else if (m_suspect != id) {
    m_suspect = id;
  } else if (still_stuck(id)) {
    give_up(
        {ISTHMUS_ERROR_MISMATCH,
         fmt::format("{}, but its peers are in another call: they differ in collective, bytes, root, algorithm "
                     "or place in the symmetric heap",
                     story_of(id)),
         "call the same collectives in the same order, and with heap buffers at the same place of the same "
         "block "
         "on every rank; where buffers lie elsewhere on some rank, name copy_engine:staged"});
  }
}

// Every peer that this call fetches from has signalled something else. One that has not may have been served
// already and be in the next call, so fewer prove nothing.
bool call_watchdog::is_mismatch(const call_record& record) const {
  bool any = false;
  for (int source = 0; source < m_resources.size; ++source) {
    const std::uint32_t tag = record.tags[static_cast<std::size_t>(source)];
    if (tag == 0) continue;
    any = true;
    bool other = false;
    for (const transfer_slot slot : all_slots) {
      const std::uint32_t seen = ready(slot, source);
      const bool fits = record.staged == (slot != transfer_slot::direct) && seen == tag;
      if (fits) return false;
      other = other || seen != 0;
    }
    if (!other) return false;
  }
  return any;
}

std::string call_watchdog::story_of(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record) return fmt::format("rank {} waits in a call that is no longer known", m_resources.rank);
  return fmt::format("rank {} waits in {} of {} x {} ({})", m_resources.rank,
                     isthmus_collective_name(record->collective), record->count,
                     isthmus_datatype_name(record->datatype),
                     record->staged ? "staged" : "out of the symmetric heap");
}

// Who has neither signalled nor taken what it was handed; where nothing was, who has not signalled.
std::string call_watchdog::awaited_in(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record || !m_monitor.read()) return "";
  std::string silent, both;
  for (int peer = 0; peer < m_resources.size; ++peer) {
    const bool is_source = record->tags[static_cast<std::size_t>(peer)] != 0;
    std::uint32_t seen = 0, pending = 0;
    for (const transfer_slot slot : all_slots) {
      seen |= ready(slot, peer);
      pending |= m_monitor.acknowledgement(static_cast<std::size_t>(slot), peer);
    }
    if (is_source && seen == 0) silent += fmt::format("{}{}", silent.empty() ? "" : ", ", peer);
    if (pending != 0 && seen == 0) both += fmt::format("{}{}", both.empty() ? "" : ", ", peer);
  }
  const std::string& ranks = both.empty() ? silent : both;
  return ranks.empty() ? "" : fmt::format("; no signal from rank(s) {}", ranks);
}

void call_watchdog::time_out(std::uint32_t id) {
  give_up({ISTHMUS_ERROR_TIMEOUT,
           fmt::format("{} for longer than the timeout of {:g} s{}", story_of(id), m_context.timeout_s,
                       awaited_in(id)),
           "did every rank call the same collective? timeout_s in the config raises the bound"});
}

// ---- letting go -------------------------------------------------------------------------------------

void call_watchdog::write_releasing_flags(std::uint32_t id) {
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
void call_watchdog::shut_out_late_ranks() {
  std::vector<word_step> steps;
  for (int peer = 0; peer < m_resources.size; ++peer)
    if (peer != m_resources.rank)
      for (const transfer_slot slot : all_slots)
        steps.push_back({word_action::write, m_resources.memory.ready(peer, slot, m_resources.rank), 0});
  m_monitor.write(steps);
  m_monitor.tell_peers_that_this_rank_gave_up();
  m_told = clock::now();
  // The word alone does not tell: between two calls it is zero, and the stream comes to the next by itself.
  m_may_be_inside = !m_log.is_empty();
}

// Peers that are in this call release their own streams when they hear of it, which then push: until that is
// over nobody may take the error for leave to use the buffers.
void call_watchdog::settle_in_time() {
  if (m_may_be_inside && clock::now() - *m_told < hearing_time) return;
  {
    const std::lock_guard lock(m_mutex);
    m_settled = true;
  }
  m_changed.notify_all();
}

// Call by call until the stream has passed everything that it was given; a part of that in each look. More
// may come to it later, behind a long kernel.
void call_watchdog::release() {
  if (!m_told) shut_out_late_ranks();
  settle_in_time();
  const auto now = clock::now(), end = now + round_limit;
  for (std::uint32_t id = current(); id != 0 && clock::now() < end; id = current()) {
    write_releasing_flags(id);
    if (!m_monitor.wait_briefly()) break;
  }
  if (current() == 0) {
    m_release_since.reset();
    return;
  }
  if (!m_release_since) m_release_since = now;
  if (now - *m_release_since > release_limit && !std::exchange(m_complained, true))
    m_context.log(
        m_context.runtime, 2,
        "a stream could not be released within %d s: it waits for a word, and so does whoever waits for it",
        static_cast<int>(std::chrono::seconds(release_limit).count()));
}

}  // namespace isthmus::copy_engine
