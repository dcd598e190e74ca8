#include "recorder/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace isthmus::recorder {
namespace {

using rank_group = std::vector<const recorded_rank*>;

bool contains(const rank_group& ranks, const recorded_rank* rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<int> numbers_of(const rank_group& ranks) {
  std::vector<int> numbers;
  for (const recorded_rank* rank : ranks) numbers.push_back(rank->rank);
  return numbers;
}

const char* have_or_has(const rank_group& ranks) { return ranks.size() == 1 ? "has" : "have"; }

bool is_waiting(const recorded_rank& rank) { return !rank.calls.empty() && rank.calls.back().is_pending(); }

class analyzer {
 public:
  explicit analyzer(const std::vector<recorded_rank>& ranks) : m_ranks(ranks) {}

  // Tries the most certain causes first. Also reports an earlier mismatch that all ranks have already passed,
  // because its calls moved wrong data. Such a mismatch explains why ranks are now one call apart or why the
  // state of a stream is unknown.
  diagnosis analyze() const {
    const auto mismatch = find_mismatch();
    if (mismatch && !is_completed_everywhere(mismatch->number)) return mismatch->result;
    for (const auto find_cause : {&analyzer::find_lost_process, &analyzer::find_destroyed})
      if (auto result = (this->*find_cause)()) {
        if (mismatch) result->sentence += "; earlier, " + mismatch->result.sentence;
        return *result;
      }
    for (const auto find_cause : {&analyzer::find_blocked_message, &analyzer::find_missing,
                                  &analyzer::find_left_process, &analyzer::find_straggler})
      if (const auto result = (this->*find_cause)())
        return mismatch ? with_current_state(*mismatch, *result) : *result;
    return mismatch ? mismatch->result : no_rank_waits();
  }

 private:
  // The other ranks that are in the collective that the responsible ranks have not entered or have not left.
  struct waiting_ranks {
    std::vector<int> ranks;
    const recorded_call* call = nullptr;  // call of one of these ranks
    double waiting_s = 0;
    bool is_pending = false;
  };

  waiting_ranks ranks_waiting_at(std::uint64_t number, const rank_group& responsible) const {
    waiting_ranks result;
    for (const recorded_rank& rank : m_ranks) {
      if (contains(responsible, &rank)) continue;
      const recorded_call* const call = rank.collective(number);
      if (call == nullptr) continue;
      result.ranks.push_back(rank.rank);
      const bool has_waited_longer =
          call->is_pending() > result.is_pending ||
          (call->is_pending() == result.is_pending && call->begin_age_s > result.waiting_s);
      if (result.call == nullptr || has_waited_longer) {
        result.call = call;
        result.waiting_s = call->begin_age_s;
        result.is_pending = call->is_pending();
      }
    }
    return result;
  }

  static std::string waiting_clause(const waiting_ranks& others) {
    return others.is_pending
               ? fmt::format("in which {} {} waited for {}", list_of(others.ranks),
                             others.ranks.size() == 1 ? "has" : "have", format_seconds(others.waiting_s))
               : fmt::format("which {} entered {} ago", list_of(others.ranks),
                             format_seconds(others.waiting_s));
  }

  // Formats "has not entered allreduce #17 (...), in which ranks 0 and 1 have waited for 3.00 s; its last
  // call was ...".
  std::string absence_clause(const rank_group& responsible, waiting_ranks& others) const {
    const recorded_rank& first = *responsible.front();
    const recorded_call* const last = first.last_collective();
    const bool is_still_inside = last != nullptr && last->is_pending();
    others = ranks_waiting_at(first.collectives() + (is_still_inside ? 0 : 1), responsible);
    const std::string tail = responsible.size() == 1 && !is_still_inside ? "; " + last_call_of(first) : "";
    if (others.call == nullptr) return responsible.size() == 1 ? last_call_of(first) : "no rank waits for them";
    return fmt::format("{} {}, {}{}",
                       is_still_inside ? "in" : fmt::format("{} not entered", have_or_has(responsible)),
                       text_of(*others.call, false), waiting_clause(others), tail);
  }

  diagnosis make_diagnosis(diagnosis_kind kind, const rank_group& responsible, double waiting_s,
                           const std::string& sentence) const {
    return {kind, numbers_of(responsible), false, waiting_s, sentence + remote_clause()};
  }

  std::vector<int> remote_ranks() const {
    std::vector<int> ranks;
    const auto& pids = m_ranks.front().pids;
    for (std::size_t rank = 0; rank < pids.size(); ++rank)
      if (pids[rank] == 0) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }
  std::string remote_clause() const {
    const auto ranks = remote_ranks();
    return ranks.empty() ? "" : fmt::format("; {} cannot be seen from this machine", list_of(ranks));
  }

  // ---- possible causes -----------------------------------------------------------------------------------

  bool is_any_rank_waiting() const { return std::any_of(m_ranks.begin(), m_ranks.end(), is_waiting); }

  // Returns the ranks that made collective `number`, grouped by matching calls, with the largest group first.
  std::vector<rank_group> group_by_call(std::uint64_t number) const {
    std::vector<rank_group> all;
    for (const recorded_rank& rank : m_ranks) {
      const recorded_call* const call = rank.collective(number);
      if (call == nullptr) continue;
      const auto match = std::find_if(all.begin(), all.end(), [&](const rank_group& each) {
        return calls_match(*each.front()->collective(number), *call);
      });
      if (match == all.end())
        all.push_back({&rank});
      else
        match->push_back(&rank);
    }
    std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
    return all;
  }

  struct numbered_diagnosis {
    std::uint64_t number;
    diagnosis result;
  };

  // Returns true if every rank has completed that collective.
  bool is_completed_everywhere(std::uint64_t number) const {
    return std::all_of(m_ranks.begin(), m_ranks.end(), [&](const recorded_rank& rank) {
      const recorded_call* const call = rank.collective(number);
      return rank.collectives() > number || (call != nullptr && call->has_ended);
    });
  }

  std::optional<numbered_diagnosis> find_mismatch() const {
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
    for (const recorded_rank& rank : m_ranks) {
      for (const recorded_call& call : rank.calls)
        if (!call.is_message()) first = std::min(first, call.number);
      last = std::max(last, rank.collectives());
    }
    for (std::uint64_t number = first; number <= last; ++number)
      if (const auto all = group_by_call(number); all.size() > 1)
        return numbered_diagnosis{number, describe_mismatch(number, all)};
    return std::nullopt;
  }

  static diagnosis with_current_state(const numbered_diagnosis& mismatch, const diagnosis& now) {
    diagnosis result = mismatch.result;
    result.waiting_s = now.waiting_s;
    result.sentence += "; now " + now.sentence;
    return result;
  }

  diagnosis describe_mismatch(std::uint64_t number, const std::vector<rank_group>& all) const {
    const auto call_of = [&](const rank_group& ranks) -> const recorded_call& {
      return *ranks.front()->collective(number);
    };
    const bool has_same_text = text_of(call_of(all[0]), false) == text_of(call_of(all[1]), false);
    rank_group responsible;
    std::string text;
    for (std::size_t i = 1; i < all.size(); ++i) {
      responsible.insert(responsible.end(), all[i].begin(), all[i].end());
      text += fmt::format("{}{} called {}", i == 1 ? "" : ", ", list_of(all[i]),
                          text_of(call_of(all[i]), has_same_text));
    }
    const waiting_ranks others = ranks_waiting_at(number, responsible);
    const std::string duration = others.is_pending ? fmt::format(" and {} waited for {}", have_or_has(all[0]),
                                                                 format_seconds(others.waiting_s))
                                                   : std::string();
    if (all[0].size() == all[1].size()) responsible.insert(responsible.end(), all[0].begin(), all[0].end());
    return make_diagnosis(diagnosis_kind::mismatch, responsible, others.waiting_s,
                          fmt::format("{}, but {} called {}{}", text, list_of(all[0]),
                                      text_of(call_of(all[0]), has_same_text), duration));
  }

  // A rank that reported a failure and exited usually waited for another rank.
  static bool has_left(const recorded_rank& rank) {
    return !rank.is_remote && rank.process == process_state::exited && !rank.failure.empty();
  }
  std::optional<diagnosis> find_lost_process() const { return find_process_failure(false); }
  std::optional<diagnosis> find_left_process() const { return find_process_failure(true); }

  std::optional<diagnosis> find_process_failure(bool may_be_consequence) const {
    std::vector<process_report> reports;
    for (const recorded_rank& rank : m_ranks)
      reports.push_back({rank.is_remote ? process_state::alive : rank.process, !rank.failure.empty()});
    const process_failure cause = isthmus::find_process_failure(reports);
    rank_group all;
    for (const std::size_t index : cause.processes) all.push_back(&m_ranks[index]);
    // If all processes are in the same state, the state alone does not identify the cause.
    const bool has_exited = cause.state == process_state::exited;
    const bool are_equal = all.size() == m_ranks.size() && (all.size() > 1 || cause.may_be_consequence);
    if (all.empty() || are_equal || cause.may_be_consequence != may_be_consequence) return std::nullopt;
    const char* const is_or_are = all.size() == 1 ? "is" : "are";
    waiting_ranks others;
    const std::string clause = absence_clause(all, others);
    const char* const separator = clause.starts_with("in ") ? " " : clause.starts_with("ha") ? " and " : "; ";
    return make_diagnosis(has_exited ? diagnosis_kind::exited : diagnosis_kind::stopped, all, others.waiting_s,
                          fmt::format("{} {} {}{}{}", list_of(all), has_exited ? have_or_has(all) : is_or_are,
                                      has_exited ? "exited" : "stopped", separator, clause));
  }

  // If a rank of this machine has no file, the rank removed it when it destroyed the communicator.
  std::optional<diagnosis> find_destroyed() const {
    if (!is_any_rank_waiting()) return std::nullopt;
    const auto& pids = m_ranks.front().pids;
    std::vector<int> destroyed_ranks;
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      const auto has_rank = [&](const recorded_rank& each) { return each.rank == static_cast<int>(rank); };
      if (pids[rank] != 0 && std::none_of(m_ranks.begin(), m_ranks.end(), has_rank))
        destroyed_ranks.push_back(static_cast<int>(rank));
    }
    if (destroyed_ranks.empty()) return std::nullopt;
    const recorded_rank* const first = longest_waiting();
    return diagnosis{
        diagnosis_kind::destroyed, destroyed_ranks, false, first->calls.back().begin_age_s,
        fmt::format(
            "{} destroyed the communicator, is exiting, or could not create a recorder file, while rank {} "
            "has waited in {} for {}",
            list_of(destroyed_ranks), first->rank, text_of(first->calls.back(), false),
            format_seconds(first->calls.back().begin_age_s)) +
            remote_clause()};
  }

  const recorded_rank* longest_waiting() const {
    const recorded_rank* result = nullptr;
    for (const recorded_rank& rank : m_ranks)
      if (is_waiting(rank) &&
          (result == nullptr || rank.calls.back().begin_age_s > result->calls.back().begin_age_s))
        result = &rank;
    return result;
  }

  const recorded_rank* find_rank(int number) const {
    for (const recorded_rank& rank : m_ranks)
      if (rank.rank == number) return &rank;
    return nullptr;
  }

  // Ranks that each wait for the next one.
  struct wait_chain {
    const recorded_rank* last = nullptr;  // NULL: not visible on this machine
    bool is_cycle = false;                // the ranks wait for each other
  };
  // `next_rank` returns the rank that a rank waits for; -1: none.
  template <typename NextRank>
  wait_chain follow(const recorded_rank& first, NextRank&& next_rank) const {
    wait_chain chain{&first};
    for (std::size_t steps = 0; chain.last != nullptr; ++steps) {
      const int next = next_rank(*chain.last);
      if (next < 0) break;
      chain.is_cycle = steps == m_ranks.size();
      if (chain.is_cycle) break;
      chain.last = find_rank(next);
    }
    return chain;
  }

  // The chain ends at a rank that does not wait for a message.
  std::optional<diagnosis> find_blocked_message() const {
    auto result = describe_blocked_message();
    if (result) result->is_message_wait = true;
    return result;
  }

  std::optional<diagnosis> describe_blocked_message() const {
    const recorded_rank* const first = longest_waiting();
    if (first == nullptr || !first->calls.back().is_message()) return std::nullopt;
    const auto [current, is_cycle] = follow(*first, [](const recorded_rank& rank) {
      return is_waiting(rank) && rank.calls.back().is_message() ? rank.calls.back().signature.root : -1;
    });
    const recorded_call& call = first->calls.back();
    const std::string wait = fmt::format("rank {} has waited in {} for {}", first->rank, text_of(call, false),
                                         format_seconds(call.begin_age_s));
    if (current == nullptr) return make_diagnosis(diagnosis_kind::remote, {}, call.begin_age_s, wait);
    if (is_cycle) {
      const recorded_rank* const peer = find_rank(call.signature.root);
      return make_diagnosis(diagnosis_kind::mismatch, {first, peer}, call.begin_age_s,
                            fmt::format("ranks wait for each other: {}, rank {} in {}", wait, peer->rank,
                                        text_of(peer->calls.back(), false)));
    }
    return make_diagnosis(diagnosis_kind::missing, {current}, call.begin_age_s,
                          fmt::format("{} has not made the matching call: {}; {}", list_of(rank_group{current}),
                                      wait, last_call_of(*current)));
  }

  std::optional<diagnosis> find_missing() const {
    std::uint64_t max_calls = 0, min_calls = std::numeric_limits<std::uint64_t>::max();
    for (const recorded_rank& rank : m_ranks) {
      max_calls = std::max(max_calls, rank.collectives());
      if (!has_left(rank)) min_calls = std::min(min_calls, rank.collectives());
    }
    if (max_calls <= min_calls) return std::nullopt;
    rank_group missing_ranks;
    for (const recorded_rank& rank : m_ranks)
      if (!has_left(rank) && rank.collectives() == min_calls) missing_ranks.push_back(&rank);
    waiting_ranks others;
    const std::string clause = absence_clause(missing_ranks, others);
    return make_diagnosis(
        diagnosis_kind::missing, missing_ranks, others.waiting_s,
        fmt::format("{} {}{}", list_of(missing_ranks),
                    clause.starts_with("in ") ? (missing_ranks.size() == 1 ? "is still " : "are still ") : "",
                    clause));
  }

  std::optional<diagnosis> find_straggler() const {
    const recorded_rank* const first = longest_waiting();
    if (first == nullptr) return std::nullopt;
    const recorded_call& call = first->calls.back();
    const auto remote = remote_ranks();
    const waiting_ranks others = ranks_waiting_at(call.number, {});
    if (!remote.empty())
      return diagnosis{diagnosis_kind::remote,
                       {},
                       false,
                       call.begin_age_s,
                       fmt::format("{} {} waited in {} for {}; {} cannot be seen from this machine",
                                   list_of(others.ranks), others.ranks.size() == 1 ? "has" : "have",
                                   text_of(call, false), format_seconds(call.begin_age_s), list_of(remote))};
    const recorded_rank* latest = first;
    for (const recorded_rank& rank : m_ranks)
      if (const recorded_call* const own_call = rank.collective(call.number);
          own_call != nullptr && own_call->begin_age_s < latest->collective(call.number)->begin_age_s)
        latest = &rank;
    const double delay_s = call.begin_age_s - latest->collective(call.number)->begin_age_s;
    diagnosis result =
        make_diagnosis(diagnosis_kind::slow, {latest}, call.begin_age_s,
                       fmt::format("all {} ranks have entered {}, the first {} ago; {} arrived last, {} later",
                                   m_ranks.size(), text_of(call, false), format_seconds(call.begin_age_s),
                                   list_of(rank_group{latest}), format_seconds(delay_s)));
    add_blocking_rank(*first, result);
    return result;
  }

  // Backends publish the rank that a long wait is blocked on.
  void add_blocking_rank(const recorded_rank& first, diagnosis& result) const {
    // The rank that entered first may be the slow one, so that it waits for no rank.
    const auto waiting =
        std::ranges::find_if(m_ranks, [](const recorded_rank& rank) { return rank.awaited_rank >= 0; });
    const recorded_rank* const start = first.awaited_rank < 0 && waiting != m_ranks.end() ? &*waiting : &first;
    const auto [last, is_cycle] = follow(*start, [](const recorded_rank& rank) { return rank.awaited_rank; });
    if (is_cycle) result.sentence += "; the ranks wait for each other, so they are in different steps of calls";
    if (is_cycle || last == nullptr || last == start) return;
    result.is_awaited = true;
    result.responsible_ranks = {last->rank};
    result.sentence +=
        fmt::format("; ranks wait for {}, which waits for no rank: it is slow", list_of(rank_group{last}));
  }

  diagnosis no_rank_waits() const {
    const recorded_rank& first = m_ranks.front();
    const recorded_call* const last = first.last_collective();
    return {diagnosis_kind::none,
            {},
            false,
            0,
            fmt::format("no rank waits; the last collective is {}",
                        last == nullptr ? "none" : text_of(*last, false)) +
                remote_clause()};
  }

  const std::vector<recorded_rank>& m_ranks;
};

}  // namespace

const char* name_of(diagnosis_kind kind) {
  switch (kind) {
    case diagnosis_kind::none: return "none";
    case diagnosis_kind::mismatch: return "mismatch";
    case diagnosis_kind::exited: return "exited";
    case diagnosis_kind::stopped: return "stopped";
    case diagnosis_kind::destroyed: return "destroyed";
    case diagnosis_kind::missing: return "missing";
    case diagnosis_kind::remote: return "remote";
    case diagnosis_kind::slow: return "slow";
  }
  return "none";
}

diagnosis diagnose(const std::vector<recorded_rank>& ranks) { return analyzer(ranks).analyze(); }

}  // namespace isthmus::recorder
