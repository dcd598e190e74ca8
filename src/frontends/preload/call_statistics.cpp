#include "frontends/preload/call_statistics.hpp"

#include <cstdio>

#include "frontends/preload/engine_loader.hpp"

namespace isthmus::preload {

call_statistics::call_statistics(const statistics_labels& labels)
    : m_labels(labels),
      m_is_reporting(is_enabled(labels.variable)),
      m_passed_through(std::make_unique<std::atomic<std::uint64_t>[]>(
          static_cast<std::size_t>(labels.call_count) * static_cast<std::size_t>(labels.reason_count))) {}

call_counter& call_statistics::counter_of(int call, const char* path) {
  const std::lock_guard lock(m_mutex);
  return m_handled[{call, path}];
}

void call_statistics::print(int rank, int size) {
  const std::lock_guard lock(m_mutex);
  std::string text = std::string("isthmus: ") + m_labels.front_end + ": calls of rank " + std::to_string(rank) +
                     " of " + std::to_string(size) + "\n";
  char line[256];
  std::snprintf(line, sizeof line, "  %-26s %-24s %12s %16s %12s\n", "call", "path", "calls", "bytes", "ms");
  text += line;
  for (const auto& [key, counter] : m_handled) {
    std::snprintf(line, sizeof line, "  %-26s %-24s %12llu %16llu %12.3f\n", m_labels.calls[key.first],
                  key.second.c_str(), static_cast<unsigned long long>(counter.calls.load()),
                  static_cast<unsigned long long>(counter.bytes.load()),
                  static_cast<double>(counter.nanoseconds.load()) / 1e6);
    text += line;
  }
  const std::string passed_label = std::string("passed to ") + m_labels.library;
  for (int call = 0; call < m_labels.call_count; ++call)
    for (int reason = 0; reason < m_labels.reason_count; ++reason) {
      const std::uint64_t calls = passed_through(call, reason).load();
      if (calls == 0) continue;
      std::snprintf(line, sizeof line, "  %-26s %-24s %12llu  %s\n", m_labels.calls[call], passed_label.c_str(),
                    static_cast<unsigned long long>(calls), m_labels.reasons[reason]);
      text += line;
    }
  std::fputs(text.c_str(), stderr);
}

void call_statistics::warn_once(const char* text) noexcept try {
  if (is_logging_silenced()) return;
  const std::lock_guard lock(m_warning_mutex);
  if (m_printed_warnings.insert(text).second) print_line(m_labels.front_end, "warning: %s", text);
} catch (...) {
  print_line(m_labels.front_end, "warning: no memory for a warning");
}

}  // namespace isthmus::preload
