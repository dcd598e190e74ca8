#include "operators/fused/model/trace.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace isthmus::fused {
namespace {

constexpr track all_tracks[] = {track::compute, track::copy, track::stage};

const char* name_of(track where) {
  switch (where) {
    case track::compute: return "compute";
    case track::copy: return "copy";
    case track::stage: return "stage";
  }
  return "";
}

}  // namespace

void timeline::clear() {
  const std::lock_guard lock(m_mutex);
  m_slices.clear();
}

void timeline::add(slice each) {
  const std::lock_guard lock(m_mutex);
  m_slices.push_back(std::move(each));
}

nlohmann::json timeline::chrome(int rank) const {
  const std::lock_guard lock(m_mutex);
  auto events = nlohmann::json::array();
  events.push_back({{"ph", "M"},
                    {"pid", rank},
                    {"name", "process_name"},
                    {"args", {{"name", fmt::format("rank {}", rank)}}}});
  for (const track where : all_tracks)
    events.push_back({{"ph", "M"},
                      {"pid", rank},
                      {"tid", static_cast<int>(where)},
                      {"name", "thread_name"},
                      {"args", {{"name", name_of(where)}}}});
  for (const slice& each : m_slices)
    events.push_back({{"ph", "X"},
                      {"pid", rank},
                      {"tid", static_cast<int>(each.where)},
                      {"name", each.name},
                      {"cat", name_of(each.where)},
                      {"ts", static_cast<double>(each.begin_ns) / 1e3},
                      {"dur", static_cast<double>(each.end_ns - each.begin_ns) / 1e3}});
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
}

}  // namespace isthmus::fused
