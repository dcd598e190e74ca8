#include "recorder/flight_recorder.hpp"

#include <cstring>

#include "base/log.hpp"
#include "recorder/files.hpp"

namespace isthmus::recorder {

flight_recorder::flight_recorder(const membership& ranks, double timeout_s, const trace_options& trace) {
  static const bool swept = (sweep(), true);
  static_cast<void>(swept);
  const extents parts{static_cast<std::uint64_t>(ranks.size)};
  if (const int problem = m_shared.open(path_of_file(ranks.token, ranks.rank), false, parts); problem != 0) {
    log(log_level::warning,
        "rank {}: no file for the flight recorder in {} ({}): isthmus doctor and other ranks' timeouts can't "
        "see this rank",
        ranks.rank, folder, std::strerror(problem));
    m_shared.open_privately(parts);
  }
  m_shared.complete(ranks, timeout_s, m_counter);
  if (!trace) return;
  const std::string path = path_of_trace(trace.folder, ranks.token, ranks.rank);
  const extents traced{parts.size, trace.entries, most_reasons};
  if (const int problem = m_trace.open(path, true, traced); problem != 0)
    log(log_level::warning, "rank {}: no trace: {}, of {} bytes, can't be made: {}", ranks.rank, path,
        traced.bytes(), std::strerror(problem));
  else
    m_trace.complete(ranks, timeout_s, m_counter);
}

flight_recorder::~flight_recorder() = default;

void flight_recorder::add_backend(std::size_t index, const std::string& name, bool blocking) {
  if (index >= most_backends) return;
  m_names[index] = name;
  if (!blocking) return;
  m_shared.head().blocking |= std::uint64_t{1} << index;
  if (m_trace) m_trace.head().blocking |= std::uint64_t{1} << index;
}

std::uint32_t flight_recorder::find_path(std::size_t backend, const char* algorithm) {
  const std::uint32_t known = m_shared.head().paths.load(std::memory_order_relaxed);
  for (std::uint32_t index = 1; index < known; ++index)
    if (m_paths[index].backend == backend && m_paths[index].algorithm == algorithm) {
      m_last_path = m_paths[index];
      return index;
    }
  if (known == most_paths || backend >= most_backends) return 0;  // a call without a path's name
  const std::string text = m_names[backend] + (algorithm == nullptr ? "" : fmt::format(":{}", algorithm));
  m_paths[known] = m_last_path = {backend, algorithm, known};
  m_shared.add_path(backend, text);
  if (m_trace) m_trace.add_path(backend, text);
  return known;
}

void flight_recorder::begin(setup_step step, std::uint64_t count) {
  m_open = 1;
  call_signature signature;
  signature.collective = static_cast<std::uint8_t>(step);
  write(++m_collectives, signature, count, 0, read_ticks(m_counter), {});
}

void flight_recorder::begin_check(const isthmus_operation& of) {
  m_open = 1;
  const call_signature signature{static_cast<std::uint8_t>(of.collective),
                         static_cast<std::uint8_t>(of.datatype),
                         static_cast<std::uint8_t>(of.op),
                         is_in_place(of),
                         true,
                         of.root};
  write(++m_collectives, signature, of.count, 0, read_ticks(m_counter), {});
}

void flight_recorder::fail(const char* message) noexcept {
  const auto note = [&](header& of) {
    if (of.state.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(life::healthy)) return;
    std::strncpy(of.failure, message, sizeof of.failure - 1);
    of.state.store(static_cast<std::uint32_t>(life::failed), std::memory_order_release);
  };
  note(m_shared.head());
  if (m_trace) note(m_trace.head());
}

latest_operation flight_recorder::latest() const noexcept {
  for (;;) {
    const std::uint64_t written = m_shared.head().written.load(std::memory_order_acquire);
    if (written == 0) return {};
    const entry& at = m_shared.at(written - 1);
    const std::uint64_t version = at.version.load(std::memory_order_acquire);
    const call_signature signature = unpack(at.signature.load(std::memory_order_acquire));
    latest_operation found{
        written, static_cast<isthmus_collective>(signature.collective),
        static_cast<isthmus_datatype>(signature.datatype), at.count.load(std::memory_order_acquire),
        at.state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(entry_state::inside)};
    // Steps and checks wait within the bootstrap, which bounds them.
    if (signature.collective >= ISTHMUS_COLLECTIVE_COUNT || signature.checking) found.is_busy = false;
    if (version == 2 * written && at.version.load(std::memory_order_relaxed) == version) return found;
  }
}

}  // namespace isthmus::recorder
