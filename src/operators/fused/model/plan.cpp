#include "operators/fused/model/plan.hpp"

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

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

double read_number_option(const communicator& owner, const char* key, double fallback) {
  const char* text = owner.option(fmt::format("backend.fused.{}", key));
  if (text == nullptr) return fallback;
  double value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, failure] = std::from_chars(text, end, value);
  if (failure != std::errc() || rest != end || !(value > 0))
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("backend.fused.{} = \"{}\" must be a number > 0", key, text));
  return value;
}

void peer_block::release::operator()(void* block) const noexcept {
  try {
    owner->heap().free(block);
  } catch (const error&) {  // NOLINT(bugprone-empty-catch)
    // The communicator was destroyed first, together with its heap.
  }
}

peer_block::peer_block(communicator& owner, std::uint64_t bytes)
    : m_own(owner.allocate_symmetric(bytes), {&owner}) {
  isthmus_heap_block block{};
  owner.heap().find(m_own.get(), 1, &block, nullptr);
  m_peers.assign(block.peers, block.peers + owner.ranks().size);
  for (std::size_t rank = 0; rank < m_peers.size(); ++rank)
    if (m_peers[rank] == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          fmt::format("fused_plan_create: this rank's device cannot reach memory of rank {}", rank),
          "use ISTHMUS_FUSED_SEQUENTIAL, which needs no peer access");
}

void plan::choose_schedule() {
  m_schedule = make_schedule(m_problem, m_costs);
  if (m_owner->ranks().nodes > 1)
    m_schedule = sequential_fallback(m_problem, m_schedule, m_owner->ranks().nodes);
  agree_on_schedule(*m_owner, m_problem, m_schedule);
}

void plan::choose_allreduce_schedule(const std::string& obstacle) {
  m_costs.source = "not measured";
  const auto refusal = capture_error([&] { m_schedule = make_allreduce_schedule(m_problem, obstacle); });
  agree(m_owner->control(), no_value{}, refusal, "fused_plan_create: pipelined is not possible",
        ISTHMUS_ERROR_UNSUPPORTED);
  agree_on_schedule(*m_owner, m_problem, m_schedule);
}

void plan::enqueue_collective(const void* send, void* recv, isthmus_stream stream) {
  isthmus_operation operation{};
  operation.collective = m_problem.collective();
  operation.datatype = m_problem.is_gather() ? m_problem.description.input : m_problem.description.output;
  operation.op = ISTHMUS_SUM;
  operation.count = m_problem.moved_bytes() / isthmus_datatype_bytes(operation.datatype);
  operation.send_buf = send;
  operation.recv_buf = recv;
  operation.stream = stream;
  m_owner->enqueue(operation);
}

void plan::abort(const error& failure) {
  if (!m_owner->is_aborted()) m_owner->abort(failure.info());
}

}  // namespace isthmus::fused
