#include "core/resolver.hpp"

#include <algorithm>
#include <string_view>

#include "failure/wait.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus {
namespace {

// Minimum time to wait for the reports of ranks that abort at the same time.
constexpr double min_report_wait_s = 0.02;
// If all queries together exceed their deadline by this much, the store is too slow for the remaining queries.
constexpr double max_overdue_s = 0.3;

double seconds_until(std::chrono::steady_clock::time_point deadline) {
  return std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
}

bool is_among(int rank, std::span<const int> ranks) { return std::ranges::find(ranks, rank) != ranks.end(); }

void append(failure_info& failure, const std::string& text) {
  copy_text(failure.message, sizeof failure.message, fmt::format("{}; {}", failure.message, text));
}

bool is_certain(recorder::diagnosis_kind kind) {
  return kind == recorder::diagnosis_kind::exited || kind == recorder::diagnosis_kind::stopped;
}

const char* is_or_are(const std::vector<int>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

// Formats "rank 7 is missing, and rank 6 of the same node does not respond".
std::string missing_text(const std::vector<int>& missing_ranks, const std::vector<int>& node_peers) {
  using recorder::list_of;
  const std::string text = fmt::format("{} {} missing", list_of(missing_ranks), is_or_are(missing_ranks));
  return node_peers.empty() ? text
                            : fmt::format("{}, and {} of the same node {} not respond", text,
                                          list_of(node_peers), node_peers.size() == 1 ? "does" : "do");
}

// Used for bootstraps that cannot transport reports from ranks of other nodes.
std::string unanswered_text(const std::vector<int>& ranks) {
  return fmt::format("{} did not report, and the bootstrap cannot query whether {} also waiting",
                     recorder::list_of(ranks), ranks.size() == 1 ? "it is" : "they are");
}

}  // namespace

double resolver::report_wait_s() const noexcept {
  constexpr double max_wait_s = 1, timeout_share = 0.05;
  return std::clamp(timeout_share * m_timeout_s, min_report_wait_s, max_wait_s);
}

// ---- records of this node ----------------------------------------------------------------------------

recorder::diagnosis resolver::diagnose() const noexcept {
  try {
    const auto ranks = recorder::read_communicator(m_ranks.token, m_ranks.size);
    return ranks.empty() ? recorder::diagnosis{} : recorder::diagnose(ranks);
  } catch (...) {  // no memory or file descriptor: report the failure without a diagnosis
    return {};
  }
}

failure_info resolver::with_diagnosis(failure_info failure) const noexcept {
  using recorder::diagnosis_kind;
  const bool is_wait_failure =
      failure.status == ISTHMUS_ERROR_TIMEOUT || failure.status == ISTHMUS_ERROR_REMOTE;
  if (!is_wait_failure && failure.status != ISTHMUS_ERROR_BACKEND) return failure;
  recorder::diagnosis findings = diagnose();
  // The memory of an exiting process is released before the process disappears, so retry for up to 100 ms.
  const int attempts = is_wait_failure || m_ranks.process_size == m_ranks.size ? 0 : 5;
  for (int i = 0; i < attempts && findings.kind != diagnosis_kind::exited; ++i) {
    sleep_briefly(std::chrono::milliseconds(20));
    findings = diagnose();
  }
  if (!is_wait_failure && findings.kind != diagnosis_kind::exited) return failure;
  try {
    attribute_diagnosis(failure, findings);
    // The message of a native library may be long and does not name the exited rank, so put the diagnosis first.
    if (!is_wait_failure)
      copy_text(failure.message, sizeof failure.message,
                fmt::format("{}: {}", findings.sentence, failure.message));
    if (is_wait_failure && !is_certain(findings.kind)) add_process_failure(failure);
    if (is_wait_failure && findings.kind != diagnosis_kind::none) append(failure, findings.sentence);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory: keep the message without a diagnosis
  }
  return failure;
}

failure_info resolver::with_abort_diagnosis(failure_info failure) const noexcept {
  using recorder::diagnosis_kind;
  recorder::diagnosis findings = diagnose();
  // As long as some ranks have not entered the call, it is unknown which call most ranks make.
  for (int i = 0; i < 5 && m_ranks.size > 2 && failure.status == ISTHMUS_ERROR_MISMATCH &&
                  findings.kind == diagnosis_kind::mismatch && findings.responsible_ranks.size() > 1;
       ++i) {
    sleep_briefly(std::chrono::milliseconds(20));
    findings = diagnose();
  }
  const auto reported_kinds = {diagnosis_kind::mismatch, diagnosis_kind::exited, diagnosis_kind::stopped,
                               diagnosis_kind::missing};
  if (std::ranges::find(reported_kinds, findings.kind) == reported_kinds.end()) return failure;
  // The backend has received the message whose size differs, so the calls that wait for it are no cause.
  if (failure.status == ISTHMUS_ERROR_MISMATCH && findings.is_message_wait) return failure;
  try {
    if (failure.status == ISTHMUS_ERROR_ABORTED || findings.kind == diagnosis_kind::mismatch)
      attribute_diagnosis(failure, findings);
    append(failure, findings.sentence);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory: keep the message without a diagnosis
  }
  return failure;
}

// A stopped or exited process explains a timeout even if ranks make different calls or have no recorder file.
void resolver::add_process_failure(failure_info& failure) const {
  const process_failure cause = m_peers.find_process_failure();
  if (cause.processes.empty() || cause.may_be_consequence) return;
  attribute(failure, std::vector<int>(cause.processes.begin(), cause.processes.end()));
  const bool is_described = std::string_view(failure.message).find("(its process") != std::string_view::npos;
  if (!is_described) append(failure, m_peers.describe({}));  // a timeout of an exchange contains it
}

// If a process has exited or is stopped, the diagnosis is certain. Otherwise, the backend's own list is more
// accurate. Exception: on a single node, where all ranks are visible, a backend may have timed out on ranks
// that are not missing but blocked themselves.
void resolver::attribute_diagnosis(failure_info& failure, const recorder::diagnosis& findings) const {
  using recorder::diagnosis_kind;
  // A backend that times out because of different calls names the rank that it waited for, which may have made the
  // same call as most others. Only on a single node are all calls known.
  if (findings.kind == diagnosis_kind::mismatch) {
    const bool is_explained = failure.status == ISTHMUS_ERROR_TIMEOUT ||
                              failure.status == ISTHMUS_ERROR_MISMATCH ||
                              failure.status == ISTHMUS_ERROR_ABORTED;
    if (is_explained && m_ranks.nodes == 1) attribute(failure, findings.responsible_ranks);
    return;
  }
  const bool is_likely = findings.kind == diagnosis_kind::missing ||
                         findings.kind == diagnosis_kind::destroyed || findings.is_awaited;
  if (!is_certain(findings.kind) && !is_likely) return;
  failure_info diagnosed_failure;
  attribute(diagnosed_failure, findings.responsible_ranks);
  const bool names_waiting_ranks =
      failure.status == ISTHMUS_ERROR_TIMEOUT && m_ranks.nodes == 1 &&
      std::ranges::find_first_of(failure.failed_ranks(), diagnosed_failure.failed_ranks()) ==
          failure.failed_ranks().end();
  if (!is_certain(findings.kind) && !failure.failed_ranks().empty() && !names_waiting_ranks) return;
  // The message names the rank that the backend waited for.
  if ((failure.status == ISTHMUS_ERROR_TIMEOUT || failure.status == ISTHMUS_ERROR_REMOTE) &&
      !std::ranges::equal(failure.failed_ranks(), diagnosed_failure.failed_ranks()))
    append(failure, fmt::format("the ranks wait for {}", recorder::list_of(findings.responsible_ranks)));
  failure.set_failed_ranks(diagnosed_failure.failed_ranks());
}

void resolver::attribute(failure_info& failure, std::span<const int> ranks) const {
  std::vector<int> failed_ranks;
  for (const int rank : ranks)
    if (rank >= 0 && rank < m_ranks.size) failed_ranks.push_back(rank);  // unverified input of a plug-in
  failure.set_failed_ranks(m_is_subcommunicator ? to_parent_ranks(failed_ranks) : failed_ranks);
}

std::vector<int> resolver::to_parent_ranks(std::span<const int> ranks) const {
  std::vector<int> parent_ranks;
  for (const int rank : ranks) parent_ranks.push_back(m_ranks.parent_rank_of[static_cast<std::size_t>(rank)]);
  return parent_ranks;
}

// ---- answers of other nodes ---------------------------------------------------------------------------

// On a single node, the flight recorder shows which ranks wait. For a subcommunicator, the
// parent runs the query.
bool resolver::should_query_peers() const noexcept {
  return m_ranks.nodes > 1 && !m_is_subcommunicator && m_ranks.process_size < m_ranks.size;
}

// A backend knows which ranks it waits for, but these ranks may be blocked elsewhere, in another
// subcommunicator or in the next call. Blocked ranks time out and report at about the same time, so a rank
// that does not report is missing. Returns false if all ranks reported, because another rank then knows
// the root cause.
bool resolver::remove_reporting_ranks(failure_info& failure) const noexcept {
  if (failure.failed_ranks().empty()) return true;
  try {
    std::vector<int> awaited_ranks(failure.failed_ranks().begin(), failure.failed_ranks().end());
    bool can_query = true;
    const auto deadline = deadline_after(report_wait_s());
    std::vector<int> missing_ranks =
        find_unresponsive(awaited_ranks, peer_status::aborted, deadline, can_query);
    // A full list may be truncated, so query all other ranks.
    if (missing_ranks.empty() && awaited_ranks.size() == failure_info::max_failed_ranks)
      missing_ranks = find_unresponsive(ranks_except(awaited_ranks), peer_status::aborted, deadline, can_query);
    const bool are_all_reporting = missing_ranks.empty();
    // MPI transports no reports, and a rank that waits inside MPI has no timeout of its own.
    if (!m_control.has_aborted(m_ranks.rank, 0))
      std::erase_if(missing_ranks, [this](int rank) { return is_in_same_call(rank); });
    failure.set_failed_ranks(missing_ranks);
    if (missing_ranks.empty()) {
      const char* const verb = awaited_ranks.size() == 1 ? "s" : "";
      append(failure, are_all_reporting
                          ? fmt::format("{} report{} a wait as well: check the network between the nodes",
                                        recorder::list_of(awaited_ranks), verb)
                          : fmt::format("{} {} in the same call and may wait for a rank of another node",
                                        recorder::list_of(awaited_ranks), is_or_are(awaited_ranks)));
      return false;
    }
    const std::vector<int> node_peers =
        can_query ? unresponsive_node_peers(missing_ranks, failure.status) : std::vector<int>();
    const std::string text =
        can_query ? missing_text(missing_ranks, node_peers) : unanswered_text(missing_ranks);
    missing_ranks.insert(missing_ranks.end(), node_peers.begin(), node_peers.end());
    std::ranges::sort(missing_ranks);
    failure.set_failed_ranks(missing_ranks);
    copy_text(failure.message, sizeof failure.message, fmt::format("{}: {}", text, failure.message));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory: keep the message without the missing ranks
  }
  return true;
}

// The loss of a whole node is more likely than that of a single rank. Ranks of this node are visible
// without a query. After a timeout, peers should have aborted as well, because they started to wait at
// about the same time. After the exit of a rank, peers may be anywhere in the program, so it suffices that
// they are still connected.
std::vector<int> resolver::unresponsive_node_peers(const std::vector<int>& missing_ranks,
                                                   isthmus_status status) const {
  const auto node = [this](int rank) { return m_ranks.node_of[static_cast<std::size_t>(rank)]; };
  std::vector<int> node_peers;
  for (const int rank : ranks_except(missing_ranks))
    if (!is_on_this_node(rank) &&
        std::ranges::any_of(missing_ranks, [&](int each) { return node(each) == node(rank); }))
      node_peers.push_back(rank);
  bool can_query = true;
  const peer_status expected_status =
      status == ISTHMUS_ERROR_TIMEOUT ? peer_status::aborted : peer_status::present;
  node_peers = find_unresponsive(node_peers, expected_status, deadline_after(min_report_wait_s), can_query);
  return can_query ? node_peers : std::vector<int>();
}

// Returns whether the rank, in a live process of this node, is in the same call as this rank. It may wait or work.
bool resolver::is_in_same_call(int rank) const {
  const health_record *const own = m_peers.process(m_ranks.rank).record, *const peer =
                                                                             m_peers.process(rank).record;
  return own != nullptr && peer != nullptr && own->call_count == peer->call_count &&
         m_peers.process(rank).state() == process_state::alive;
}

std::vector<int> resolver::ranks_except(const std::vector<int>& ranks) const {
  std::vector<int> other_ranks;
  for (int rank = 0; rank < m_ranks.size; ++rank)
    if (rank != m_ranks.rank && !is_among(rank, ranks)) other_ranks.push_back(rank);
  return other_ranks;
}

// Returns the ranks of `ranks` that do not report `expected_status` before the deadline. As soon as a rank
// of another node cannot be queried, sets `can_query` to false and counts all remaining ranks of other
// nodes as unresponsive.
std::vector<int> resolver::find_unresponsive(const std::vector<int>& ranks, peer_status expected_status,
                                             clock::time_point deadline, bool& can_query) const {
  std::vector<int> unresponsive_ranks;
  for (const int rank : ranks) {
    const double remaining_s = seconds_until(deadline);
    can_query = can_query && remaining_s > -max_overdue_s;
    const auto has_rank_reported = can_query || is_on_this_node(rank)
                                       ? has_reported(rank, expected_status, std::max(0.0, remaining_s))
                                       : std::nullopt;
    can_query = can_query && has_rank_reported.has_value();
    if (!has_rank_reported.value_or(false)) unresponsive_ranks.push_back(rank);
  }
  return unresponsive_ranks;
}

std::optional<bool> resolver::has_aborted(int rank, double wait_s) const noexcept {
  const auto result = m_peers.has_aborted(rank, wait_s);  // nullopt if the record is not visible
  return result ? result : m_control.has_aborted(rank, wait_s);
}

// Returns true if the rank reports `expected_status` within `wait_s`, and nullopt if it cannot be queried. Does
// not wait for an exited process.
std::optional<bool> resolver::has_reported(int rank, peer_status expected_status,
                                           double wait_s) const noexcept {
  if (rank == m_ranks.rank) return true;
  if (expected_status == peer_status::present) {
    const auto has_disconnected = m_control.is_disconnected(rank);
    if (has_disconnected.value_or(false)) return has_aborted(rank, 0);  // programs exit at their first error
    return has_disconnected ? std::optional(true) : std::nullopt;
  }
  const process_state state = m_ranks.rank_processes[static_cast<std::size_t>(rank)].state();
  const auto has_rank_reported = has_aborted(rank, state == process_state::alive ? wait_s : 0);
  return !has_rank_reported && state != process_state::alive ? false : has_rank_reported;
}

}  // namespace isthmus
