#include "operators/fused/model/trace.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace isthmus::fused {
namespace {

constexpr trace_track all_tracks[] = {trace_track::compute, trace_track::copy, trace_track::stage};

const char* name_of(trace_track track) {
  switch (track) {
    case trace_track::compute: return "compute";
    case trace_track::copy: return "copy";
    case trace_track::stage: return "stage";
  }
  return "";
}

}  // namespace

void timeline::clear() {
  const std::lock_guard lock(m_mutex);
  m_slices.clear();
}

void timeline::add(trace_slice slice) {
  const std::lock_guard lock(m_mutex);
  m_slices.push_back(std::move(slice));
}

nlohmann::json timeline::chrome(int rank) const {
  const std::lock_guard lock(m_mutex);
  auto events = nlohmann::json::array();
  events.push_back({{"ph", "M"},
                    {"pid", rank},
                    {"name", "process_name"},
                    {"args", {{"name", fmt::format("rank {}", rank)}}}});
  for (const trace_track track : all_tracks)
    events.push_back({{"ph", "M"},
                      {"pid", rank},
                      {"tid", static_cast<int>(track)},
                      {"name", "thread_name"},
                      {"args", {{"name", name_of(track)}}}});
  for (const trace_slice& slice : m_slices)
    events.push_back({{"ph", "X"},
                      {"pid", rank},
                      {"tid", static_cast<int>(slice.track)},
                      {"name", slice.name},
                      {"cat", name_of(slice.track)},
                      {"ts", static_cast<double>(slice.begin_ns) / 1e3},
                      {"dur", static_cast<double>(slice.end_ns - slice.begin_ns) / 1e3}});
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
}

}  // namespace isthmus::fused
