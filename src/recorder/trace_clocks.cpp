// Alignment of the clocks of several machines.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/tables.hpp"
#include "recorder/clock.hpp"
#include "recorder/trace.hpp"

namespace isthmus::recorder {
namespace {

// Error bound of the times in a file. They are inexact because the rate of the counter is only known from a
// few clock samples.
constexpr std::int64_t clock_error_ns = 1000;
constexpr std::int64_t unbounded_ns = std::numeric_limits<std::int64_t>::max() / 4;

// Returns true if no rank can leave the call before all ranks have started it. This holds for a barrier, and
// for collectives in which every result depends on all ranks. Returns false for calls that may still run on a
// stream, because their end is unknown.
bool synchronizes_all(const recorded_call& call) {
  if (call.signature.collective >= ISTHMUS_COLLECTIVE_COUNT || call.signature.is_check || !call.has_ended)
    return false;
  const collective_row& row = row_of(static_cast<isthmus_collective>(call.signature.collective));
  const bool has_no_data = row.send_extent == extent::nothing && row.recv_extent == extent::nothing;
  if (has_no_data) return row.peer == peer_kind::none;
  return row.send_ranks == buffer_ranks::all && row.recv_ranks == buffer_ranks::all && has_equal_count(row) &&
         call.count > 0 && row.peer == peer_kind::none;
}

void shift_clock(trace& merged_trace, std::size_t machine, std::int64_t shift_ns) {
  const auto shift_time = [&](std::uint64_t& ns) {
    if (ns != 0) ns = static_cast<std::uint64_t>(saturating_add(static_cast<std::int64_t>(ns), shift_ns));
  };
  for (traced_communicator& each : merged_trace.communicators)
    for (traced_rank& rank : each.ranks) {
      if (rank.machine != machine) continue;
      shift_time(rank.record.clocks.monotonic_ns);
      for (recorded_call& call : rank.record.calls) {
        shift_time(call.requested_ns);
        shift_time(call.begin_ns);
        shift_time(call.end_ns);
      }
    }
  merged_trace.machines[machine].offset_ns = saturating_add(merged_trace.machines[machine].offset_ns, shift_ns);
}

const recorded_rank& first_rank_on(const trace& merged_trace, std::size_t machine) {
  for (const traced_communicator& each : merged_trace.communicators)
    for (const traced_rank& rank : each.ranks)
      if (rank.machine == machine) return rank.record;
  return merged_trace.communicators.front().ranks.front().record;
}

// Bounds of the offset between the clocks of a machine and of the first machine.
struct bounds {
  std::int64_t min = -unbounded_ns, max = unbounded_ns;
  bool is_bounded() const { return min > -unbounded_ns && max < unbounded_ns; }
};

void tighten_bounds(bounds& offset_bounds, const traced_communicator& communicator,
                    const matched_call& collective, std::size_t machine) {
  std::int64_t reference_begin = -unbounded_ns, reference_end = unbounded_ns, machine_begin = -unbounded_ns,
               machine_end = unbounded_ns;
  for (std::size_t i = 0; i < collective.rank_calls.size(); ++i) {
    const recorded_call& call = *collective.rank_calls[i];
    const std::size_t call_machine = communicator.ranks[i].machine;
    if ((call_machine != 0 && call_machine != machine) || !synchronizes_all(call)) continue;
    std::int64_t& begin = call_machine == 0 ? reference_begin : machine_begin;
    std::int64_t& end = call_machine == 0 ? reference_end : machine_end;
    begin = std::max(begin, static_cast<std::int64_t>(call.begin_ns));
    end = std::min(end, static_cast<std::int64_t>(call.end_ns));
  }
  if (reference_begin == -unbounded_ns || machine_begin == -unbounded_ns) return;
  offset_bounds.min = std::max(offset_bounds.min, saturating_subtract(machine_begin, reference_end));
  offset_bounds.max = std::min(offset_bounds.max, saturating_subtract(machine_end, reference_begin));
}

}  // namespace

void align(trace& merged_trace) {
  const clock_sample reference_clocks = first_rank_on(merged_trace, 0).clocks;
  for (std::size_t machine = 1; machine < merged_trace.machines.size(); ++machine) {
    const clock_sample machine_clocks = first_rank_on(merged_trace, machine).clocks;
    shift_clock(merged_trace, machine,
                static_cast<std::int64_t>((machine_clocks.realtime_ns - machine_clocks.monotonic_ns) -
                                          (reference_clocks.realtime_ns - reference_clocks.monotonic_ns)));
    bounds offset_bounds;
    for (const traced_communicator& each : merged_trace.communicators)
      for (const matched_call& collective : each.calls)
        tighten_bounds(offset_bounds, each, collective, machine);
    traced_machine& target = merged_trace.machines[machine];
    target.alignment_source = "the real-time clocks";
    if (!offset_bounds.is_bounded()) continue;
    shift_clock(merged_trace, machine,
                saturating_subtract(0, std::midpoint(offset_bounds.min, offset_bounds.max)));
    target.alignment_source = "the ends of collectives";
    // If the clocks drift apart, no offset fits all calls, and min can exceed max.
    const auto [min, max] = std::minmax(offset_bounds.min, offset_bounds.max);
    target.uncertainty_ns = saturating_subtract(max, min) / 2 + clock_error_ns;
  }
}

}  // namespace isthmus::recorder
