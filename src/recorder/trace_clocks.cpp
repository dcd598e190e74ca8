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
constexpr std::int64_t clock_error_ns = 1000;
constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max() / 4;

// No rank can leave it before all have begun it: everybody's result has something of everybody, or it is a
// barrier. Where a call leaves the rest to a stream nothing is known of its end.
bool synchronizes_all(const recorded_call& call) {
  if (call.signature.collective >= ISTHMUS_COLLECTIVE_COUNT || call.signature.is_check || !call.has_ended) return false;
  const collective_row& row = row_of(static_cast<isthmus_collective>(call.signature.collective));
  const bool moves_nothing = row.send_extent == extent::nothing && row.recv_extent == extent::nothing;
  if (moves_nothing) return row.peer == peer_kind::none;
  return row.send_ranks == buffer_ranks::all && row.recv_ranks == buffer_ranks::all && has_equal_count(row) && call.count > 0 &&
         row.peer == peer_kind::none;
}

void shift(trace& of, std::size_t machine, std::int64_t by_ns) {
  const auto shift_time = [&](std::uint64_t& ns) {
    if (ns != 0) ns = static_cast<std::uint64_t>(saturating_add(static_cast<std::int64_t>(ns), by_ns));
  };
  for (traced_communicator& each : of.communicators)
    for (traced_rank& rank : each.ranks) {
      if (rank.machine != machine) continue;
      shift_time(rank.record.clocks.monotonic_ns);
      for (recorded_call& call : rank.record.calls) {
        shift_time(call.requested_ns);
        shift_time(call.begin_ns);
        shift_time(call.end_ns);
      }
    }
  of.machines[machine].offset_ns = saturating_add(of.machines[machine].offset_ns, by_ns);
}

const recorded_rank& first_rank_on(const trace& of, std::size_t machine) {
  for (const traced_communicator& each : of.communicators)
    for (const traced_rank& rank : each.ranks)
      if (rank.machine == machine) return rank.record;
  return of.communicators.front().ranks.front().record;
}

// How much the clock of `machine` may be ahead of the first one's.
struct bounds {
  std::int64_t min = -unbounded, max = unbounded;
  bool is_bounded() const { return min > -unbounded && max < unbounded; }
};

void tighten(bounds& ahead, const traced_communicator& of, const matched_call& matched, std::size_t machine) {
  std::int64_t begin_first = -unbounded, end_first = unbounded, begin_other = -unbounded,
               end_other = unbounded;
  for (std::size_t i = 0; i < matched.rank_calls.size(); ++i) {
    const recorded_call& call = *matched.rank_calls[i];
    const std::size_t call_machine = of.ranks[i].machine;
    if ((call_machine != 0 && call_machine != machine) || !synchronizes_all(call)) continue;
    std::int64_t& begin = call_machine == 0 ? begin_first : begin_other;
    std::int64_t& end = call_machine == 0 ? end_first : end_other;
    begin = std::max(begin, static_cast<std::int64_t>(call.begin_ns));
    end = std::min(end, static_cast<std::int64_t>(call.end_ns));
  }
  if (begin_first == -unbounded || begin_other == -unbounded) return;
  ahead.min = std::max(ahead.min, saturating_subtract(begin_other, end_first));
  ahead.max = std::min(ahead.max, saturating_subtract(end_other, begin_first));
}

}  // namespace

void align(trace& of) {
  const clock_sample own = first_rank_on(of, 0).clocks;
  for (std::size_t machine = 1; machine < of.machines.size(); ++machine) {
    const clock_sample other = first_rank_on(of, machine).clocks;
    shift(of, machine,
          static_cast<std::int64_t>((other.realtime_ns - other.monotonic_ns) -
                                    (own.realtime_ns - own.monotonic_ns)));
    bounds ahead;
    for (const traced_communicator& each : of.communicators)
      for (const matched_call& matched : each.calls) tighten(ahead, each, matched, machine);
    traced_machine& target = of.machines[machine];
    target.alignment_source = "the clocks of day";
    if (!ahead.is_bounded()) continue;
    shift(of, machine, saturating_subtract(0, std::midpoint(ahead.min, ahead.max)));
    target.alignment_source = "the ends of collectives";
    // Clocks that drift apart leave no offset that fits all calls.
    const auto [min, max] = std::minmax(ahead.min, ahead.max);
    target.uncertainty_ns = saturating_subtract(max, min) / 2 + clock_error_ns;
  }
}

}  // namespace isthmus::recorder
