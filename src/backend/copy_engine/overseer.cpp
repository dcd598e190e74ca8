#include "backend/copy_engine/overseer.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace isthmus::copy_engine {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

constexpr auto between_inspections = 500ms;
constexpr auto release_limit = 10s;
constexpr auto round_limit = 20ms;  // of one look

}  // namespace

// Another priority for the stream: drivers put streams of one priority into few queues, where this one would
// get stuck behind those that it is to release.
overseer::overseer(const isthmus_backend_context& context, equipment& tools, const call_log& log,
                   holdings& held)
    : m_context(context),
      m_tools(tools),
      m_log(log),
      m_stream(held.stream(stream_priority::high)),
      m_done(held.event()),
      m_pinned(static_cast<std::uint32_t*>(held.pinned(mirror_at * sizeof(std::uint32_t) + signal_bytes))) {}

void overseer::give_up(failure why) {
  {
    const std::lock_guard lock(m_mutex);
    if (m_reason) return;
    m_reason = std::move(why);
  }
  m_failed.store(true, std::memory_order_release);
}

std::optional<failure> overseer::reason() const {
  const std::lock_guard lock(m_mutex);
  return m_reason;
}

void overseer::look(clock::time_point now) {
  const std::uint32_t id = current();
  if (m_abort.load(std::memory_order_acquire) && !failed())
    give_up({ISTHMUS_ERROR_ABORTED, "the communicator was aborted", ""});
  if (failed()) {
    release(now);
    return;
  }
  if (id != m_seen) {
    m_seen = id;
    m_since = m_inspected = now;
    return;
  }
  if (id == 0) return;
  if (seconds(now - m_since).count() >= m_context.timeout_s && still_stuck(id)) {
    time_out(id);
  } else if (now - m_inspected >= between_inspections) {
    m_inspected = now;
    inspect(id, now);
  }
}

// A captured call has the same id each time that it is replayed. Between two replays the word is zero for a
// moment, which sampling misses but a close look does not.
bool overseer::still_stuck(std::uint32_t id) const {
  const auto end = clock::now() + round_limit;
  while (clock::now() < end)
    if (current() != id) return false;
  return true;
}

// For what the overseer's stream was given.
bool overseer::wait_briefly() {
  m_tools.driver.record(m_tools.device, m_done, m_stream);
  const auto end = clock::now() + round_limit;
  while (!m_tools.driver.done(m_done)) {
    if (clock::now() > end) return false;
    std::this_thread::sleep_for(20us);
  }
  return true;
}

bool overseer::read_signals() {
  const device_copy one{m_pinned + mirror_at, m_tools.area.gave_up(m_tools.rank) - peer_area::gave_up_index(),
                        signal_bytes};
  m_tools.driver.copy(m_tools.device, {&one, 1}, m_stream);
  return wait_briefly();
}

bool overseer::all_loans_returned() {
  if (!read_signals()) return false;
  for (const thing what : {thing::first_slot, thing::second_slot, thing::own_buffer})
    for (int reader = 0; reader < m_tools.size; ++reader)
      if (signal(peer_area::lent_index(what, reader)) != 0) return false;
  return true;
}

void overseer::inspect(std::uint32_t id, clock::time_point now) {
  if (!read_signals()) return;
  if (const std::uint32_t peer = signal(peer_area::gave_up_index()); peer != 0) {
    give_up({ISTHMUS_ERROR_REMOTE, fmt::format("rank {} gave up while {}", peer - 1, story_of(id)),
             "see the error that this rank reports"});
    return release(now);
  }
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
    release(now);
  }
}

// Every peer that this call fetches from has signalled something else. One that has not may have been served
// already and be in the next call, so fewer prove nothing.
bool overseer::is_mismatch(const call_record& record) const {
  bool any = false;
  for (int source = 0; source < m_tools.size; ++source) {
    const std::uint32_t tag = record.tags[static_cast<std::size_t>(source)];
    if (tag == 0) continue;
    any = true;
    bool other = false;
    for (const thing what : {thing::first_slot, thing::second_slot, thing::own_buffer}) {
      const std::uint32_t seen = signal(peer_area::ready_index(what, source));
      const bool fits = record.staged == (what != thing::own_buffer) && seen == tag;
      if (fits) return false;
      other = other || seen != 0;
    }
    if (!other) return false;
  }
  return any;
}

std::string overseer::story_of(std::uint32_t id) {
  const auto record = m_log.find(id);
  if (!record) return fmt::format("rank {} waits in a call that is no longer known", m_tools.rank);
  return fmt::format("rank {} waits in {} of {} x {} ({})", m_tools.rank,
                     isthmus_collective_name(record->collective), record->count,
                     isthmus_datatype_name(record->datatype),
                     record->staged ? "staged" : "out of the symmetric heap");
}

void overseer::time_out(std::uint32_t id) {
  std::string silent;
  const auto record = m_log.find(id);
  if (record && read_signals())
    for (int source = 0; source < m_tools.size; ++source) {
      if (record->tags[static_cast<std::size_t>(source)] == 0) continue;
      std::uint32_t seen = 0;
      for (const thing what : {thing::first_slot, thing::second_slot, thing::own_buffer})
        seen |= signal(peer_area::ready_index(what, source));
      if (seen == 0) silent += fmt::format("{}{}", silent.empty() ? "" : ", ", source);
    }
  give_up({ISTHMUS_ERROR_TIMEOUT,
           fmt::format("{} for longer than the timeout of {:g} s{}", story_of(id), m_context.timeout_s,
                       silent.empty() ? std::string() : fmt::format("; no signal from rank(s) {}", silent)),
           "did every rank call the same collective? timeout_s in the config raises the bound"});
  release(clock::now());
}

// ---- letting go -------------------------------------------------------------------------------------

void overseer::write_releasing_words(std::uint32_t id) {
  std::vector<word_step> words;
  if (const auto record = m_log.find(id))
    for (int source = 0; source < m_tools.size; ++source)
      if (const std::uint32_t tag = record->tags[static_cast<std::size_t>(source)]; tag != 0)
        for (const thing what : {thing::first_slot, thing::second_slot, thing::own_buffer})
          if (record->staged == (what != thing::own_buffer))
            words.push_back({word_action::write, m_tools.area.ready(m_tools.rank, what, source), tag});
  for (const thing what : {thing::first_slot, thing::second_slot, thing::own_buffer})
    for (int reader = 0; reader < m_tools.size; ++reader)
      if (reader != m_tools.rank)
        words.push_back({word_action::write, m_tools.area.lent(m_tools.rank, what, reader), 0});
  m_tools.driver.words(m_tools.device, words, m_stream);
}

void overseer::tell_peers() {
  std::vector<word_step> words;
  for (int peer = 0; peer < m_tools.size; ++peer)
    if (peer != m_tools.rank)
      words.push_back(
          {word_action::write, m_tools.area.gave_up(peer), static_cast<std::uint32_t>(m_tools.rank) + 1});
  if (!words.empty()) m_tools.driver.words(m_tools.device, words, m_stream);
}

// Word by word until the stream has passed everything that it was given; a part of that in each look. More
// may come to it later, behind a long kernel.
void overseer::release(clock::time_point now) {
  if (!std::exchange(m_told, true)) tell_peers();
  const auto end = now + round_limit;
  for (std::uint32_t id = current(); id != 0 && clock::now() < end; id = current()) {
    write_releasing_words(id);
    if (!wait_briefly()) break;
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
