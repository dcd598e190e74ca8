#include "frontends/preload/ledger.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace isthmus::preload {
namespace {

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

bool says_nothing() {
  const char* const level = std::getenv("ISTHMUS_LOG");
  return level != nullptr && (std::string_view(level) == "off" || std::string_view(level) == "error");
}

}  // namespace

ledger::ledger(const ledger_words& words)
    : m_words(words),
      m_is_reporting(is_set(words.variable)),
      m_passed(std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(words.call_count) *
                                                              static_cast<std::size_t>(words.reason_count))) {}

tally& ledger::tally_of(int call, const char* path) {
  const std::lock_guard lock(m_mutex);
  return m_taken[{call, path}];
}

void ledger::print(int rank, int size) {
  const std::lock_guard lock(m_mutex);
  std::string text = std::string("isthmus: ") + m_words.front_end + ": calls of rank " + std::to_string(rank) +
                     " of " + std::to_string(size) + "\n";
  char line[256];
  std::snprintf(line, sizeof line, "  %-26s %-24s %12s %16s %12s\n", "call", "path", "calls", "bytes", "ms");
  text += line;
  for (const auto& [what, count] : m_taken) {
    std::snprintf(line, sizeof line, "  %-26s %-24s %12llu %16llu %12.3f\n", m_words.calls[what.first],
                  what.second.c_str(), static_cast<unsigned long long>(count.calls.load()),
                  static_cast<unsigned long long>(count.bytes.load()),
                  static_cast<double>(count.nanoseconds.load()) / 1e6);
    text += line;
  }
  const std::string where = std::string("passed to ") + m_words.library;
  for (int call = 0; call < m_words.call_count; ++call)
    for (int why = 0; why < m_words.reason_count; ++why) {
      const std::uint64_t calls = passed(call, why).load();
      if (calls == 0) continue;
      std::snprintf(line, sizeof line, "  %-26s %-24s %12llu  %s\n", m_words.calls[call], where.c_str(),
                    static_cast<unsigned long long>(calls), m_words.reasons[why]);
      text += line;
    }
  std::fputs(text.c_str(), stderr);
}

void ledger::warn_once(const char* text) noexcept try {
  if (says_nothing()) return;
  const std::lock_guard lock(m_said_mutex);
  if (m_said.insert(text).second) std::fprintf(stderr, "isthmus: %s: warning: %s\n", m_words.front_end, text);
} catch (...) {
  std::fprintf(stderr, "isthmus: %s: warning: no memory for a warning\n", m_words.front_end);
}

}  // namespace isthmus::preload
