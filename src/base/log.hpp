// The log of the core: one line at a time to stderr. ISTHMUS_LOG=trace|debug|info|warn|error|off, default warn.
// Only log.cpp knows which library writes it: every other file would pay for that library's headers.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace isthmus {

enum class log_level { debug, info, warning, error };

// All thread-safe, until the process ends.
bool is_logged(log_level level) noexcept;
void write_log(log_level level, const std::string& line);

template <typename... Arguments>
void log(log_level level, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (is_logged(level)) write_log(level, fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace isthmus
