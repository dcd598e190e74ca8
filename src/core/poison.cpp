// How a failure becomes known to a communicator: its own, those of others, ranks that are lost.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

#include "core/communicator.hpp"
#include "core/siblings.hpp"
#include "recorder/words.hpp"

namespace isthmus {
namespace {

using std::chrono::steady_clock;

// How long a wait lasts before it looks for another process' failure, and the time between looks.
constexpr steady_clock::duration listening_interval = std::chrono::milliseconds(100);
// A look that is slow, as the store's process is stopped, may take this part of the time.
constexpr int listening_share = 20;

// For who gives up at the same time to say so.
constexpr double moment_s = 0.02;
// Beyond the time for all answers: then a store is too slow to be asked after the rest.
constexpr double most_overdue_s = 0.3;

// How long a rank that timed out waits for others to do so: they began to wait at about the same time.
double patience_s(double timeout_s) {
  constexpr double most = 1, share = 0.05;
  return std::clamp(share * timeout_s, moment_s, most);
}

steady_clock::time_point after(double seconds) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_until(steady_clock::time_point when) {
  return std::chrono::duration<double>(when - steady_clock::now()).count();
}

bool is_among(int rank, std::span<const int> ranks) { return std::ranges::find(ranks, rank) != ranks.end(); }

const char* are(const std::vector<int>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

// "rank 7 is missing, and rank 6 of the same node is not heard of"
std::string missing_text(const std::vector<int>& missing, const std::vector<int>& beside) {
  using recorder::list_of;
  const std::string text = fmt::format("{} {} missing", list_of(missing), are(missing));
  return beside.empty()
             ? text
             : fmt::format("{}, and {} of the same node {} not heard of", text, list_of(beside), are(beside));
}

// Where nothing carries what ranks of other nodes say.
std::string unanswered_text(const std::vector<int>& ranks) {
  return fmt::format("no word from {}, and no way to ask whether {} for others", recorder::list_of(ranks),
                     ranks.size() == 1 ? "it waits" : "they wait");
}

}  // namespace

void communicator::abort_this_rank(const failure_info& failure, audience told) noexcept {
  {
    const std::lock_guard lock(m_failure_mutex);
    if (m_failure) return;
    m_failure = failure;
    m_recorder.fail(failure.message);
  }
  if (looks_for_missing()) m_control->give_up();
  // Before the backends release anybody: who is released finds the cause.
  if (told == audience::all_ranks && m_ranks.process_size < m_ranks.size) m_control->announce(failure);
  m_is_aborted.store(true, std::memory_order_release);
  m_control->cancel();
  const std::lock_guard lock(m_abort_mutex);
  if (m_closed) return;
  for (const auto& backend : m_backends) backend->abort();
}

void communicator::abort(const failure_info& failure, audience told) noexcept {
  abort_this_rank(failure, told);
  for (const auto& sibling : siblings_of(m_ranks.token, this))
    sibling->abort_this_rank(failure, audience::this_process);
}

// On one node causes are read from memory, and who sees that a process has ended needs nobody's word. From
// other nodes they come by the store. A part's is looked for by the whole.
double communicator::cause_wait_s() const noexcept {
  constexpr double from_memory = 0.05, from_a_store = 2;
  const bool is_known_here = m_ranks.nodes == 1 || !m_whole.expired() || m_notices.find_lost();
  return is_known_here ? from_memory : std::min(from_a_store, timeout_s());
}

// Where nobody has announced a cause, what followed from it is the first that is known: that a rank ended, say.
bool communicator::abort_on_backend_failure(failure_info& failure) noexcept {
  // Who comes late, and so fails at once, would clear itself while others still ask.
  const bool looks = looks_for_missing() && !(is_among(m_ranks.rank, failure.culprits()) && has_just_come());
  if (looks) m_control->give_up();
  if (is_consequence(failure.status)) {
    hear(cause_wait_s());
    if (is_aborted()) return false;
  }
  // Once for all ranks of a process. Others look for them as long as this rank has.
  if (looks && !is_aborted() && !name_missing(failure)) hear(2 * patience_s(timeout_s()));
  if (looks && is_aborted()) return false;
  abort(failure);
  return true;
}

// On one node the flight recorder shows who waits; a part's failure is looked into by the whole.
bool communicator::looks_for_missing() const noexcept {
  return m_ranks.nodes > 1 && !m_is_part && m_ranks.process_size < m_ranks.size;
}

// A backend, or one of its parts, knows for whom it waits, and that may be a rank that waits, too, elsewhere:
// for another part, or in the next call. Such ranks give up at about the same time, and say so. Of whom nothing
// is heard is missing. False where all are heard of, so that another rank knows the cause.
bool communicator::name_missing(failure_info& failure) const noexcept {
  if (failure.culprits().empty()) return true;
  try {
    std::vector<int> suspects(failure.culprits().begin(), failure.culprits().end());
    bool can_ask = true;
    const auto deadline = after(patience_s(timeout_s()));
    std::vector<int> missing = unheard_of(suspects, word::gives_up, deadline, can_ask);
    // Of a list that was full the rest is not known.
    if (missing.empty() && suspects.size() == failure_info::most_culprits)
      missing = unheard_of(others_than(suspects), word::gives_up, deadline, can_ask);
    failure.blame(missing);
    if (missing.empty()) return false;
    const std::string text =
        can_ask ? missing_text(missing, silent_beside(missing, failure.status)) : unanswered_text(missing);
    copy_text(failure.message, sizeof failure.message, fmt::format("{}: {}", text, failure.message));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory; the failure itself is told
  }
  return true;
}

// A whole machine is gone more often than one of its ranks. Ranks of this node are seen without a question.
// After a timeout the others have begun to wait at about the same time; when a rank ended they may be anywhere.
std::vector<int> communicator::silent_beside(const std::vector<int>& missing, isthmus_status status) const {
  const auto node = [this](int rank) { return m_ranks.node_of[static_cast<std::size_t>(rank)]; };
  std::vector<int> beside;
  for (const int rank : others_than(missing))
    if (!is_here(rank) && std::ranges::any_of(missing, [&](int each) { return node(each) == node(rank); }))
      beside.push_back(rank);
  bool can_ask = true;
  const word asked = status == ISTHMUS_ERROR_TIMEOUT ? word::gives_up : word::is_there;
  beside = unheard_of(beside, asked, after(moment_s), can_ask);
  return can_ask ? beside : std::vector<int>();
}

std::vector<int> communicator::others_than(const std::vector<int>& ranks) const {
  std::vector<int> others;
  for (int rank = 0; rank < m_ranks.size; ++rank)
    if (rank != m_ranks.rank && !is_among(rank, ranks)) others.push_back(rank);
  return others;
}

// Those of `ranks` without this word by then. Once one of another node can't be asked, `can_ask` is false, and
// the rest of those counts as not heard of.
std::vector<int> communicator::unheard_of(const std::vector<int>& ranks, word of,
                                          steady_clock::time_point deadline, bool& can_ask) const {
  std::vector<int> silent;
  for (const int rank : ranks) {
    const double left = seconds_until(deadline);
    can_ask = can_ask && left > -most_overdue_s;
    const auto heard = can_ask || is_here(rank) ? is_heard_of(rank, of, std::max(0.0, left)) : std::nullopt;
    can_ask = can_ask && heard.has_value();
    if (!heard.value_or(false)) silent.push_back(rank);
  }
  return silent;
}

// A late rank's waits, if they have begun, have not lasted as long as those of the others.
bool communicator::has_just_come() const noexcept {
  if (m_waiting_operation.load(std::memory_order_relaxed) != m_recorder.written()) return true;
  const steady_clock::time_point since{steady_clock::duration(m_waiting_since.load(std::memory_order_relaxed))};
  return -seconds_until(since) < timeout_s() / 2;
}

// Whether it has given up, or does within this time, or is still there; nothing where it can't be asked. Who
// has ended won't.
std::optional<bool> communicator::is_heard_of(int rank, word of, double wait_s) const noexcept {
  if (rank == m_ranks.rank) return true;
  if (of == word::is_there) {
    const auto left = m_control->has_left(rank);
    if (left.value_or(false)) return m_control->has_given_up(rank, 0);  // as programs end at their first error
    return left ? std::optional(true) : std::nullopt;
  }
  const process_state state = m_ranks.process_here[static_cast<std::size_t>(rank)].state();
  const auto heard = m_control->has_given_up(rank, state == process_state::alive ? wait_s : 0);
  return !heard && state != process_state::alive ? false : heard;
}

// The process of a rank that ended or is stopped is certain; of all else the backend knows more. But where it
// timed out for others than those who have not come, these wait themselves: on one node all are seen.
void communicator::blame_found(failure_info& failure, const recorder::diagnosis& found) const {
  using recorder::trouble;
  const bool is_certain = found.kind == trouble::ended || found.kind == trouble::stopped;
  const bool is_likely = found.kind == trouble::missing || found.kind == trouble::left;
  if (!is_certain && !is_likely) return;
  failure_info blaming;
  blame(blaming, found.culprits);
  const bool waits_for_those_who_wait =
      failure.status == ISTHMUS_ERROR_TIMEOUT && m_ranks.nodes == 1 &&
      std::ranges::find_first_of(failure.culprits(), blaming.culprits()) == failure.culprits().end();
  if (is_certain || failure.culprits().empty() || waits_for_those_who_wait) failure.blame(blaming.culprits());
}

void communicator::blame(failure_info& failure, std::span<const int> ranks) const {
  std::vector<int> culprits;
  for (const int rank : ranks)
    if (rank >= 0 && rank < m_ranks.size) culprits.push_back(rank);  // what a plug-in says
  failure.blame(m_is_part ? in_parent(culprits) : culprits);
}

std::vector<int> communicator::in_parent(std::span<const int> ranks) const {
  std::vector<int> there;
  for (const int rank : ranks) there.push_back(m_ranks.parent_rank_of[static_cast<std::size_t>(rank)]);
  return there;
}

// What a backend made the failure of this communicator itself (isthmus_backend_context::abort_communicator) it returns,
// too.
std::optional<failure_info> communicator::told_before(const failure_info& failure) const {
  const std::lock_guard lock(m_failure_mutex);
  if (!m_failure || is_consequence(failure.status) || m_failure->status != failure.status ||
      m_failure->rank != failure.rank || std::strcmp(m_failure->backend, failure.backend) != 0)
    return std::nullopt;
  failure_info told = *m_failure;
  told.collective = failure.collective;
  return told;
}

// Takes over what a rank of another process has announced.
void communicator::hear(double wait_s,
                        void (*tell)(const communicator& rank, const failure_info& cause)) noexcept {
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->announced(wait_s)) {
    if (tell != nullptr) tell(*this, *cause);
    return abort(*cause, audience::this_process);
  }
  // What waits on a device sees no process. On the host whoever waits knows best whether it needs that rank.
  if (m_ranks.device.platform != ISTHMUS_PLATFORM_HOST)
    if (const auto lost = m_notices.find_lost()) abort_on_lost_peer(*lost);
}

void communicator::abort_on_lost_peer(int lost) noexcept {
  failure_info failure =
      make_error(
          ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
          fmt::format("rank {} ended before it had destroyed the communicator of rank {}", lost, m_ranks.rank),
          "look for a crash or an early exit of that rank")
          .info();
  blame(failure, std::array{lost});
  failure = with_missing(failure);
  failure.rank = m_ranks.rank;
  abort(failure);
}

void communicator::heed_notices() noexcept {
  if (const auto whole = m_whole.lock(); whole && !whole->m_closed) whole->heed_notices();
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->noticed()) abort(*cause, audience::this_process);
}

void communicator::listen() noexcept {
  // Who waits in a part waits for all: its ranks may have heard of a failure that those of the part can't.
  if (const auto whole = m_whole.lock(); whole && !whole->m_closed) whole->listen();
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  const auto begin = steady_clock::now();
  const std::uint64_t operation = m_recorder.written();
  std::int64_t due = m_next_listening.load(std::memory_order_relaxed);
  if (m_waiting_operation.exchange(operation, std::memory_order_relaxed) != operation) {
    m_waiting_since.store(begin.time_since_epoch().count(), std::memory_order_relaxed);
    m_next_listening.store((begin + listening_interval).time_since_epoch().count(), std::memory_order_relaxed);
    return;
  }
  // One of several waiting threads looks.
  if (begin.time_since_epoch().count() < due ||
      !m_next_listening.compare_exchange_strong(due, std::numeric_limits<std::int64_t>::max()))
    return;
  hear(0);
  const auto end = steady_clock::now();
  const auto pause = std::max(listening_interval, (end - begin) * listening_share);
  m_next_listening.store((end + pause).time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace isthmus
