#include "backends/copy_engine/call_watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <utility>

namespace isthmus::copy_engine {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

constexpr auto poll_interval = 20ms;
constexpr auto release_limit = 10s;
constexpr auto poll_limit = 20ms;       // duration of one check
constexpr auto reason_wait_limit = 1s;  // how long reason() waits for the peers to release their streams
constexpr auto peer_release_time =
    600ms;  // every live rank checks once within this time and releases its stream

}  // namespace

call_watchdog::call_watchdog(const isthmus_backend_context& context, rank_resources& resources,
                             const call_log& log)
    : m_context(context), m_resources(resources), m_log(log) {}

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
  watch_options options;
  options.timeout = seconds(m_context.timeout_s);
  options.interval = poll_interval;
  options.operation = [this]() -> watched_operation {
    const std::uint32_t id = current_call();
    if (id != m_inspected_call && !has_failed()) publish_awaited(-1);
    return {id, {}};
  };
  options.on_wait = [this](std::uint64_t id) { inspect(static_cast<std::uint32_t>(id)); };
  options.on_stuck = [this](std::uint64_t id) {
    if (!is_still_stuck(static_cast<std::uint32_t>(id))) return false;
    report_timeout(static_cast<std::uint32_t>(id));
    return true;
  };
  options.aborted = [this] { return check_abort(); };
  options.on_abort = [this] {
    release();
    return false;  // more calls may be enqueued later
  };
  options.on_error = [this](const char* message) {
    fail({ISTHMUS_ERROR_BACKEND, std::string("the device failed: ") + message, ""});
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

bool call_watchdog::is_still_stuck(std::uint32_t id) const {
  return is_executing([this] { return current_call(); }, id, seconds(poll_limit).count());
}

bool call_watchdog::are_all_acknowledged() const {
  for (const transfer_slot slot : all_slots)
    for (int reader = 0; reader < m_resources.size; ++reader)
      if (pending(slot, reader) != 0) return false;
  return true;
}

void call_watchdog::inspect(std::uint32_t id) {
  if (const auto peer = m_resources.memory.channel().aborted_rank(m_resources.rank))
    return fail({ISTHMUS_ERROR_REMOTE,
                 fmt::format("rank {} aborted while {}{}", *peer, describe_call(id), describe_awaited(id)),
                 "see the error that rank reports"});
  const std::vector<int> awaited = awaited_ranks(id);
  m_inspected_call = id;
  publish_awaited(awaited.empty() ? -1 : awaited.front());
  const auto record = m_log.find(id);
  if (!record || !is_mismatch(*record)) {
    m_mismatch_candidate = 0;
  } else if (m_mismatch_candidate != id) {
    m_mismatch_candidate = id;
  } else if (is_still_stuck(id)) {
    fail(
        {ISTHMUS_ERROR_MISMATCH,
         fmt::format("{}, but its peers are in another call: they differ in collective, bytes, root, algorithm "
                     "or position in the symmetric heap",
                     describe_call(id)),
         "call the same collectives in the same order on every rank, with heap buffers at the same offset of "
         "the "
         "same block; if buffers are elsewhere on some rank, name copy_engine:staged"});
  }
}

// Returns true if every source of this call has signaled a different call. Fewer mismatches are inconclusive: a
// source whose data was already fetched may have moved on to its next call.
bool call_watchdog::is_mismatch(const call_record& record) const {
  bool has_source = false;
  for (int source = 0; source < m_resources.size; ++source) {
    const std::uint32_t tag = record.tags[static_cast<std::size_t>(source)];
    if (tag == 0) continue;
    has_source = true;
    bool has_other_tag = false;
    for (const transfer_slot slot : all_slots) {
      const std::uint32_t signal = ready(slot, source);
      const bool is_match = record.is_staged == (slot != transfer_slot::direct) && signal == tag;
      if (is_match) return false;
      has_other_tag = has_other_tag || signal != 0;
    }
    if (!has_other_tag) return false;
  }
  return has_source;
}

std::string call_watchdog::describe_call(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record) return fmt::format("rank {} waits in a call that is no longer in the log", m_resources.rank);
  return fmt::format("rank {} waits in {} of {} x {} ({})", m_resources.rank,
                     isthmus_collective_name(record->collective), record->count,
                     isthmus_datatype_name(record->datatype),
                     record->is_staged ? "staged" : "in the symmetric heap");
}

// Returns the peers that have not signaled and have not fetched the data offered by this rank. If it offers no
// data, returns the sources that have not signaled.
std::vector<int> call_watchdog::awaited_ranks(std::uint32_t id) {
  const auto record = m_log.find(id);
  std::vector<int> unsignaled_ranks, inactive_ranks;
  if (!record) return {};
  for (int peer = 0; peer < m_resources.size; ++peer) {
    const auto is_set = [&](auto read) {
      return std::ranges::any_of(all_slots, [&](transfer_slot slot) { return (this->*read)(slot, peer) != 0; });
    };
    if (is_set(&call_watchdog::ready)) continue;
    if (record->tags[static_cast<std::size_t>(peer)] != 0) unsignaled_ranks.push_back(peer);
    if (is_set(&call_watchdog::pending)) inactive_ranks.push_back(peer);
  }
  return inactive_ranks.empty() ? unsignaled_ranks : inactive_ranks;
}

void call_watchdog::publish_awaited(int rank) {
  if (rank != std::exchange(m_published_rank, rank)) m_context.set_awaited_rank(m_context.runtime, rank);
}

std::string call_watchdog::describe_awaited(std::uint32_t id) {
  const std::vector<int> ranks = awaited_ranks(id);
  return ranks.empty() ? "" : fmt::format("; no signal from rank(s) {}", fmt::join(ranks, ", "));
}

void call_watchdog::report_timeout(std::uint32_t id) {
  fail({ISTHMUS_ERROR_TIMEOUT,
        fmt::format("{} for longer than the timeout of {:g} s{}", describe_call(id), m_context.timeout_s,
                    describe_awaited(id)),
        "check that every rank calls the same collective, or raise timeout_s in the configuration"});
}

// ---- releasing streams after a failure --------------------------------------------------------------

void call_watchdog::write_release_flags(std::uint32_t id) {
  const peer_memory& memory = m_resources.memory;
  const int rank = m_resources.rank;
  if (const auto record = m_log.find(id))
    for (int source = 0; source < m_resources.size; ++source)
      if (const std::uint32_t tag = record->tags[static_cast<std::size_t>(source)]; tag != 0)
        for (const transfer_slot slot : all_slots)
          if (record->is_staged == (slot != transfer_slot::direct))
            signal_channel::write(memory.ready(rank, slot, source), tag);
  for (const transfer_slot slot : all_slots)
    for (int peer = 0; peer < m_resources.size; ++peer)
      if (peer != rank) signal_channel::write(memory.pending(rank, slot, peer), 0);
}

// Clears the ready flags at the peers, because a late peer would otherwise see this rank's buffers as ready and
// push into them.
void call_watchdog::fence_late_ranks() {
  for (int peer = 0; peer < m_resources.size; ++peer)
    if (peer != m_resources.rank)
      for (const transfer_slot slot : all_slots)
        signal_channel::write(m_resources.memory.ready(peer, slot, m_resources.rank), 0);
  m_resources.memory.channel().notify_abort(m_resources.rank);
  m_notification_time = clock::now();
  // The progress word is not sufficient: it is zero between two calls, although the stream then continues with
  // the next call.
  m_may_be_in_call = !m_log.is_empty();
}

// When the peers of this call detect the failure, they release their own streams, which then push. The error is
// reported only after these writes, because the application may then reuse its buffers.
void call_watchdog::publish_reason_when_safe() {
  if (m_may_be_in_call && clock::now() - *m_notification_time < peer_release_time) return;
  {
    const std::lock_guard lock(m_mutex);
    m_is_reason_public = true;
  }
  m_changed.notify_all();
}

// Releases the stream call by call until all its work has completed, for a limited time per check. More calls
// can follow a long kernel.
void call_watchdog::release() {
  if (!m_notification_time) fence_late_ranks();
  publish_reason_when_safe();
  release_queued_calls([this] { return current_call(); },
                       [this](std::uint32_t id) { write_release_flags(id); });
  const auto now = clock::now();
  if (current_call() == 0) {
    m_release_since.reset();
    return;
  }
  if (!m_release_since) m_release_since = now;
  if (now - *m_release_since > release_limit && !std::exchange(m_has_warned, true))
    m_context.log(
        m_context.runtime, 2,
        "a stream could not be released within %d s: it still waits for a word, and so does all work after it",
        static_cast<int>(std::chrono::seconds(release_limit).count()));
}

}  // namespace isthmus::copy_engine
