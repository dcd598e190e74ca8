#include "recorder/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "recorder/words.hpp"

namespace isthmus::recorder {
namespace {

using group = std::vector<const recorded_rank*>;

bool contains(const group& ranks, const recorded_rank* rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<int> numbers_of(const group& ranks) {
  std::vector<int> numbers;
  for (const recorded_rank* rank : ranks) numbers.push_back(rank->rank);
  return numbers;
}

const char* have(const group& ranks) { return ranks.size() == 1 ? "has" : "have"; }

bool waits(const recorded_rank& rank) { return !rank.calls.empty() && rank.calls.back().is_pending(); }

class examiner {
 public:
  explicit examiner(const std::vector<recorded_rank>& ranks) : m_ranks(ranks) {}

  // The surest first. Calls that disagreed and were left behind by all are told of, too: they moved wrong data,
  // and ranks that are one call apart since then, or on streams of which nothing is known, come of that.
  diagnosis examine() const {
    const auto disagreed = mismatch();
    if (disagreed && !is_left_behind(disagreed->number)) return disagreed->found;
    for (const auto part : {&examiner::of_processes, &examiner::left})
      if (auto found = (this->*part)()) {
        if (disagreed) found->sentence += "; before, " + disagreed->found.sentence;
        return *found;
      }
    for (const auto part : {&examiner::of_messages, &examiner::missing, &examiner::all_inside})
      if (const auto found = (this->*part)()) return disagreed ? since(*disagreed, *found) : *found;
    return disagreed ? disagreed->found : nobody_waits();
  }

 private:
  // The others at the collective that `culprit` is missing from, or stays in.
  struct waiting {
    std::vector<int> ranks;
    const recorded_call* call = nullptr;  // as one of them made it
    double since_s = 0;
    bool lasts = false;
  };

  waiting at(std::uint64_t number, const group& culprits) const {
    waiting found;
    for (const recorded_rank& rank : m_ranks) {
      if (contains(culprits, &rank)) continue;
      const recorded_call* const call = rank.collective(number);
      if (call == nullptr) continue;
      found.ranks.push_back(rank.rank);
      const bool longer =
          call->is_pending() > found.lasts || (call->is_pending() == found.lasts && call->begin_age_s > found.since_s);
      if (found.call == nullptr || longer) {
        found.call = call;
        found.since_s = call->begin_age_s;
        found.lasts = call->is_pending();
      }
    }
    return found;
  }

  static std::string in_which(const waiting& others) {
    return others.lasts ? fmt::format("{} {} in since {}", list_of(others.ranks),
                                      others.ranks.size() == 1 ? "waits" : "wait", format_seconds(others.since_s))
                        : fmt::format("{} entered {} ago", list_of(others.ranks), format_seconds(others.since_s));
  }

  // "it has not entered allreduce #17 (...) that ranks 0 and 1 wait in since 3 s; its last call was ..."
  std::string absence(const group& culprits, waiting& others) const {
    const recorded_rank& first = *culprits.front();
    const recorded_call* const last = first.last_collective();
    const bool is_inside = last != nullptr && last->is_pending();
    others = at(first.collectives() + (is_inside ? 0 : 1), culprits);
    const std::string tail = culprits.size() == 1 && !is_inside ? "; " + last_call_of(first) : "";
    if (others.call == nullptr) return culprits.size() == 1 ? last_call_of(first) : "nobody waits for them";
    return fmt::format("{} {} that {}{}", is_inside ? "in" : fmt::format("{} not entered", have(culprits)),
                       text_of(*others.call, false), in_which(others), tail);
  }

  diagnosis made(trouble kind, const group& culprits, double since_s, const std::string& sentence) const {
    return {kind, numbers_of(culprits), since_s, sentence + unseen()};
  }

  std::vector<int> ranks_elsewhere() const {
    std::vector<int> ranks;
    const auto& pids = m_ranks.front().pids;
    for (std::size_t rank = 0; rank < pids.size(); ++rank)
      if (pids[rank] == 0) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }
  std::string unseen() const {
    const auto ranks = ranks_elsewhere();
    return ranks.empty() ? "" : fmt::format("; {} can't be seen from this machine", list_of(ranks));
  }

  // ---- what can be wrong ---------------------------------------------------------------------------------

  bool anybody_waits() const { return std::any_of(m_ranks.begin(), m_ranks.end(), waits); }

  // The ranks at `number`, those that agree together.
  std::vector<group> opinions(std::uint64_t number) const {
    std::vector<group> all;
    for (const recorded_rank& rank : m_ranks) {
      const recorded_call* const call = rank.collective(number);
      if (call == nullptr) continue;
      const auto same = std::find_if(all.begin(), all.end(), [&](const group& each) {
        return calls_match(*each.front()->collective(number), *call);
      });
      if (same == all.end())
        all.push_back({&rank});
      else
        same->push_back(&rank);
    }
    std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
    return all;
  }

  struct numbered {
    std::uint64_t number;
    diagnosis found;
  };

  // Every rank has ended that collective.
  bool is_left_behind(std::uint64_t number) const {
    return std::all_of(m_ranks.begin(), m_ranks.end(), [&](const recorded_rank& rank) {
      const recorded_call* const call = rank.collective(number);
      return rank.collectives() > number || (call != nullptr && call->has_ended);
    });
  }

  std::optional<numbered> mismatch() const {
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
    for (const recorded_rank& rank : m_ranks) {
      for (const recorded_call& call : rank.calls)
        if (!call.is_message()) first = std::min(first, call.number);
      last = std::max(last, rank.collectives());
    }
    for (std::uint64_t number = first; number <= last; ++number)
      if (const auto all = opinions(number); all.size() > 1) return numbered{number, disagreement(number, all)};
    return std::nullopt;
  }

  static diagnosis since(const numbered& disagreed, const diagnosis& now) {
    diagnosis found = disagreed.found;
    found.since_s = now.since_s;
    found.sentence += "; now " + now.sentence;
    return found;
  }

  diagnosis disagreement(std::uint64_t number, const std::vector<group>& all) const {
    const auto call_of = [&](const group& ranks) -> const recorded_call& {
      return *ranks.front()->collective(number);
    };
    const bool same_words = text_of(call_of(all[0]), false) == text_of(call_of(all[1]), false);
    group culprits;
    std::string who;
    for (std::size_t i = 1; i < all.size(); ++i) {
      culprits.insert(culprits.end(), all[i].begin(), all[i].end());
      who += fmt::format("{}{} called {}", i == 1 ? "" : ", ", list_of(all[i]),
                         text_of(call_of(all[i]), same_words));
    }
    const waiting others = at(number, culprits);
    const std::string since =
        others.lasts ? fmt::format(", waiting since {}", format_seconds(others.since_s)) : std::string();
    if (all[0].size() == all[1].size()) culprits.insert(culprits.end(), all[0].begin(), all[0].end());
    return made(trouble::mismatch, culprits, others.since_s,
                fmt::format("{} where {} called {}{}", who, list_of(all[0]),
                            text_of(call_of(all[0]), same_words), since));
  }

  // Where a whole job is gone, that alone says nothing: those who lived to see a failure are no cause.
  group in_state(process_state state) const {
    group found, unaware;
    for (const recorded_rank& rank : m_ranks) {
      if (rank.is_elsewhere || rank.process != state) continue;
      found.push_back(&rank);
      if (rank.failure.empty()) unaware.push_back(&rank);
    }
    if (found.size() < m_ranks.size()) return found;
    return unaware.size() < m_ranks.size() || m_ranks.size() == 1 ? unaware : group();
  }

  std::optional<diagnosis> of_processes() const {
    for (const auto state : {process_state::gone, process_state::stopped}) {
      const group all = in_state(state);
      if (all.empty()) continue;
      const bool gone = state == process_state::gone;
      const char* const what = gone ? "ended" : "stopped";
      const std::string verb = fmt::format("{} {}", gone ? have(all) : all.size() == 1 ? "is" : "are", what);
      waiting others;
      const std::string rest = absence(all, others);
      const char* const join = rest.starts_with("in ") ? " " : rest.starts_with("ha") ? " and " : "; ";
      return made(gone ? trouble::ended : trouble::stopped, all, others.since_s,
                  fmt::format("{} {}{}{}", list_of(all), verb, join, rest));
    }
    return std::nullopt;
  }

  // Ranks of this machine without a file have removed it.
  std::optional<diagnosis> left() const {
    if (!anybody_waits()) return std::nullopt;
    const auto& pids = m_ranks.front().pids;
    std::vector<int> gone;
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      const auto here = [&](const recorded_rank& each) { return each.rank == static_cast<int>(rank); };
      if (pids[rank] != 0 && std::none_of(m_ranks.begin(), m_ranks.end(), here))
        gone.push_back(static_cast<int>(rank));
    }
    if (gone.empty()) return std::nullopt;
    const recorded_rank* const first = longest_waiting();
    return diagnosis{
        trouble::left, gone, first->calls.back().begin_age_s,
        fmt::format("{} destroyed the communicator, or could not record, while rank {} waits in {} "
                    "since {}",
                    list_of(gone), first->rank, text_of(first->calls.back(), false),
                    format_seconds(first->calls.back().begin_age_s)) +
            unseen()};
  }

  const recorded_rank* longest_waiting() const {
    const recorded_rank* found = nullptr;
    for (const recorded_rank& rank : m_ranks)
      if (waits(rank) && (found == nullptr || rank.calls.back().begin_age_s > found->calls.back().begin_age_s))
        found = &rank;
    return found;
  }

  const recorded_rank* rank_of(int number) const {
    for (const recorded_rank& rank : m_ranks)
      if (rank.rank == number) return &rank;
    return nullptr;
  }

  // The chain of those who wait for one peer each ends at the one who does not.
  std::optional<diagnosis> of_messages() const {
    const recorded_rank* const first = longest_waiting();
    if (first == nullptr || !first->calls.back().is_message()) return std::nullopt;
    const recorded_rank* at = first;
    std::size_t steps = 0;
    while (at != nullptr && waits(*at) && at->calls.back().is_message() && ++steps <= m_ranks.size())
      at = rank_of(at->calls.back().signature.root);
    const recorded_call& call = first->calls.back();
    const std::string wait =
        fmt::format("rank {} waits in {} since {}", first->rank, text_of(call, false), format_seconds(call.begin_age_s));
    if (at == nullptr) return made(trouble::unseen, {}, call.begin_age_s, wait);
    if (steps > m_ranks.size())
      return made(trouble::mismatch, {first, at}, call.begin_age_s,
                  fmt::format("ranks wait for each other: {}, rank {} in {}", wait, at->rank,
                              text_of(at->calls.back(), false)));
    return made(
        trouble::missing, {at}, call.begin_age_s,
        fmt::format("{} has not made the call that {}; {}", list_of(group{at}), wait, last_call_of(*at)));
  }

  std::optional<diagnosis> missing() const {
    std::uint64_t most = 0, least = std::numeric_limits<std::uint64_t>::max();
    for (const recorded_rank& rank : m_ranks) {
      most = std::max(most, rank.collectives());
      least = std::min(least, rank.collectives());
    }
    if (most == least) return std::nullopt;
    group late;
    for (const recorded_rank& rank : m_ranks)
      if (rank.collectives() == least) late.push_back(&rank);
    waiting others;
    const std::string rest = absence(late, others);
    return made(trouble::missing, late, others.since_s,
                fmt::format("{} {}{}", list_of(late), rest.starts_with("in ") ? "still " : "", rest));
  }

  std::optional<diagnosis> all_inside() const {
    const recorded_rank* const first = longest_waiting();
    if (first == nullptr) return std::nullopt;
    const recorded_call& call = first->calls.back();
    const auto elsewhere = ranks_elsewhere();
    const waiting others = at(call.number, {});
    if (!elsewhere.empty())
      return diagnosis{trouble::unseen,
                       {},
                       call.begin_age_s,
                       fmt::format("{} {} in {} since {}; {} can't be seen from this machine",
                                   list_of(others.ranks), others.ranks.size() == 1 ? "waits" : "wait",
                                   text_of(call, false), format_seconds(call.begin_age_s), list_of(elsewhere))};
    const recorded_rank* latest = first;
    for (const recorded_rank& rank : m_ranks)
      if (const recorded_call* const own = rank.collective(call.number);
          own != nullptr && own->begin_age_s < latest->collective(call.number)->begin_age_s)
        latest = &rank;
    const double behind = call.begin_age_s - latest->collective(call.number)->begin_age_s;
    return made(
        trouble::slow, {latest}, call.begin_age_s,
        fmt::format("all {} ranks have entered {}, the first {} ago; {} came last, {} later", m_ranks.size(),
                    text_of(call, false), format_seconds(call.begin_age_s), list_of(group{latest}), format_seconds(behind)));
  }

  diagnosis nobody_waits() const {
    const recorded_rank& first = m_ranks.front();
    const recorded_call* const last = first.last_collective();
    return {trouble::none,
            {},
            0,
            fmt::format("no rank waits; the last collective is {}",
                        last == nullptr ? "none" : text_of(*last, false)) +
                unseen()};
  }

  const std::vector<recorded_rank>& m_ranks;
};

}  // namespace

const char* name_of(trouble kind) {
  switch (kind) {
    case trouble::none: return "none";
    case trouble::mismatch: return "mismatch";
    case trouble::ended: return "ended";
    case trouble::stopped: return "stopped";
    case trouble::left: return "left";
    case trouble::missing: return "missing";
    case trouble::unseen: return "unseen";
    case trouble::slow: return "slow";
  }
  return "none";
}

diagnosis diagnose(const std::vector<recorded_rank>& ranks) { return examiner(ranks).examine(); }

}  // namespace isthmus::recorder
