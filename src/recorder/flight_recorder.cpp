#include "recorder/flight_recorder.hpp"

#include <cstring>

#include "base/log.hpp"

namespace isthmus::recorder {

flight_recorder::flight_recorder(const membership& ranks, double timeout_s, const trace_options& trace) {
  static const bool has_removed_stale_files = (remove_stale_files(), true);
  static_cast<void>(has_removed_stale_files);
  const file_layout layout{static_cast<std::uint64_t>(ranks.size)};
  if (const int problem = m_shared_recording.open(path_of_file(ranks.token, ranks.rank), false, layout);
      problem != 0) {
    log(log_level::warning,
        "rank {}: cannot create the flight recorder file in {}: {}; isthmus doctor and timeouts of other ranks "
        "do not show the calls of this rank",
        ranks.rank, shared_memory_folder, std::strerror(problem));
    m_shared_recording.open_unnamed(layout);
  }
  m_shared_recording.publish(ranks, timeout_s, m_has_counter);
  if (!trace) return;
  const std::string path = trace_path(trace.folder, ranks.token, ranks.rank);
  const file_layout trace_layout{layout.size, trace.entries, max_reasons};
  if (const int problem = m_trace.open(path, true, trace_layout); problem != 0)
    log(log_level::warning, "rank {}: cannot create trace {} of {} bytes: {}", ranks.rank, path,
        trace_layout.bytes(), std::strerror(problem));
  else
    m_trace.publish(ranks, timeout_s, m_has_counter);
}

flight_recorder::~flight_recorder() = default;

void flight_recorder::add_backend(std::size_t index, const std::string& name, bool is_blocking,
                                  const char* const* algorithms) {
  if (index >= max_backends) return;
  m_names[index] = name;
  m_algorithms[index] = algorithms;
  if (!is_blocking) return;
  m_shared_recording.head().blocking_backends |= std::uint64_t{1} << index;
  if (m_trace) m_trace.head().blocking_backends |= std::uint64_t{1} << index;
}

std::uint32_t flight_recorder::find_or_add_path(std::size_t backend, int algorithm) {
  const std::uint32_t count = m_shared_recording.head().paths.load(std::memory_order_relaxed);
  for (std::uint32_t index = 1; index < count; ++index)
    if (m_paths[index].backend == backend && m_paths[index].algorithm == algorithm) {
      m_last_path = m_paths[index];
      return index;
    }
  if (count == max_paths || backend >= max_backends) return 0;  // the call has no path
  const std::string text =
      m_names[backend] + (algorithm < 0 ? "" : fmt::format(":{}", m_algorithms[backend][algorithm]));
  m_paths[count] = m_last_path = {backend, algorithm, count};
  m_shared_recording.add_path(backend, text);
  if (m_trace) m_trace.add_path(backend, text);
  return count;
}

void flight_recorder::begin(setup_step step, std::uint64_t count) {
  m_open_entries = 1;
  call_signature signature;
  signature.collective = static_cast<std::uint8_t>(step);
  write(++m_collectives, signature, count, 0, read_ticks(m_has_counter), {});
}

void flight_recorder::begin_check(const isthmus_operation& operation) {
  m_open_entries = 1;
  const call_signature signature{static_cast<std::uint8_t>(operation.collective),
                                 static_cast<std::uint8_t>(operation.datatype),
                                 static_cast<std::uint8_t>(operation.op),
                                 is_in_place(operation),
                                 true,
                                 operation.root};
  write(++m_collectives, signature, operation.count, 0, read_ticks(m_has_counter), {});
}

void flight_recorder::fail(const failure_info& failure) noexcept {
  m_shared_recording.head().health.set_failure(failure, health_record::local);
  if (m_trace) m_trace.head().health.set_failure(failure, health_record::local);
}

latest_operation flight_recorder::latest() const noexcept {
  for (;;) {
    const std::uint64_t call_count =
        m_shared_recording.head().health.call_count.load(std::memory_order_acquire);
    if (call_count == 0) return {};
    const entry& slot = m_shared_recording.entry_at(call_count - 1);
    const std::uint64_t version = slot.version.load(std::memory_order_acquire);
    const call_signature signature = unpack(slot.signature.load(std::memory_order_acquire));
    latest_operation result{
        call_count, static_cast<isthmus_collective>(signature.collective),
        static_cast<isthmus_datatype>(signature.datatype), slot.count.load(std::memory_order_acquire),
        slot.state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(entry_state::inside)};
    // Set-up steps and checks wait in the bootstrap, which has its own timeout.
    if (signature.collective >= ISTHMUS_COLLECTIVE_COUNT || signature.is_check) result.is_busy = false;
    if (result.is_busy && !is_point_to_point(result.collective))
      result.collective_number = slot.number.load(std::memory_order_acquire);
    if (version == 2 * call_count && slot.version.load(std::memory_order_relaxed) == version) return result;
  }
}

}  // namespace isthmus::recorder
