// Traces of several machines on one clock.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/tables.hpp"
#include "recorder/clock.hpp"
#include "recorder/trace.hpp"

namespace isthmus::recorder {
namespace {

// Of a moment in a file: its counter's rate is known from a few readings of the clock beside it.
constexpr std::int64_t reading_ns = 1000;
constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max() / 4;

// No rank can leave it before all have begun it: everybody's result has something of everybody, or it is a
// barrier. Where a call leaves the rest to a stream nothing is known of its end.
bool joins_all(const recorded_call& call) {
  if (call.signature.collective >= ISTHMUS_COLLECTIVE_COUNT || call.signature.is_check || !call.has_ended) return false;
  const collective_row& row = row_of(static_cast<isthmus_collective>(call.signature.collective));
  const bool moves_nothing = row.send_extent == extent::nothing && row.recv_extent == extent::nothing;
  if (moves_nothing) return row.peer == peer_kind::none;
  return row.send_ranks == site::all && row.recv_ranks == site::all && has_equal_count(row) && call.count > 0 &&
         row.peer == peer_kind::none;
}

void shift(trace& of, std::size_t machine, std::int64_t by_ns) {
  const auto move = [&](std::uint64_t& ns) {
    if (ns != 0) ns = static_cast<std::uint64_t>(saturating_add(static_cast<std::int64_t>(ns), by_ns));
  };
  for (traced_communicator& each : of.communicators)
    for (traced_rank& rank : each.ranks) {
      if (rank.machine != machine) continue;
      move(rank.record.clocks.monotonic_ns);
      for (recorded_call& call : rank.record.calls) {
        move(call.requested_ns);
        move(call.begin_ns);
        move(call.end_ns);
      }
    }
  of.machines[machine].offset_ns = saturating_add(of.machines[machine].offset_ns, by_ns);
}

const recorded_rank& rank_on(const trace& of, std::size_t machine) {
  for (const traced_communicator& each : of.communicators)
    for (const traced_rank& rank : each.ranks)
      if (rank.machine == machine) return rank.record;
  return of.communicators.front().ranks.front().record;
}

// How much the clock of `machine` may be ahead of the first one's.
struct bounds {
  std::int64_t least = -unbounded, most = unbounded;
  bool known() const { return least > -unbounded && most < unbounded; }
};

void tighten(bounds& ahead, const traced_communicator& of, const met_call& met, std::size_t machine) {
  std::int64_t begun_here = -unbounded, ended_here = unbounded, begun_there = -unbounded,
               ended_there = unbounded;
  for (std::size_t i = 0; i < met.of_rank.size(); ++i) {
    const recorded_call& call = *met.of_rank[i];
    const std::size_t on = of.ranks[i].machine;
    if ((on != 0 && on != machine) || !joins_all(call)) continue;
    std::int64_t& begun = on == 0 ? begun_here : begun_there;
    std::int64_t& ended = on == 0 ? ended_here : ended_there;
    begun = std::max(begun, static_cast<std::int64_t>(call.begin_ns));
    ended = std::min(ended, static_cast<std::int64_t>(call.end_ns));
  }
  if (begun_here == -unbounded || begun_there == -unbounded) return;
  ahead.least = std::max(ahead.least, saturating_subtract(begun_there, ended_here));
  ahead.most = std::min(ahead.most, saturating_subtract(ended_there, begun_here));
}

}  // namespace

void align(trace& of) {
  const clock_sample own = rank_on(of, 0).clocks;
  for (std::size_t machine = 1; machine < of.machines.size(); ++machine) {
    const clock_sample there = rank_on(of, machine).clocks;
    shift(of, machine,
          static_cast<std::int64_t>((there.realtime_ns - there.monotonic_ns) -
                                    (own.realtime_ns - own.monotonic_ns)));
    bounds ahead;
    for (const traced_communicator& each : of.communicators)
      for (const met_call& met : each.calls) tighten(ahead, each, met, machine);
    traced_machine& told = of.machines[machine];
    told.how = "the clocks of day";
    if (!ahead.known()) continue;
    shift(of, machine, saturating_subtract(0, std::midpoint(ahead.least, ahead.most)));
    told.how = "the ends of collectives";
    // Clocks that drift apart leave no offset that fits all calls.
    const auto [least, most] = std::minmax(ahead.least, ahead.most);
    told.uncertainty_ns = saturating_subtract(most, least) / 2 + reading_ns;
  }
}

}  // namespace isthmus::recorder
