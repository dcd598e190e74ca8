// Logging to stderr, one line per message. The level is set by ISTHMUS_LOG=trace|debug|info|warn|error|off
// (default: warn). Only log.cpp includes spdlog, to keep compile times low.
//
// Thread safety: all functions can be called from any thread until the process exits.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace isthmus {

enum class log_level { debug = 1, info, warning, error };  // the values of spdlog

bool is_logged(log_level level) noexcept;
void write_log(log_level level, const std::string& line);

template <typename... Arguments>
void log(log_level level, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (is_logged(level)) write_log(level, fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace isthmus
