// Log lines on standard error. The core's log is not used, because most programs into which this library is
// preloaded never load the core. ISTHMUS_LOG applies here as well.
#pragma once

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "frontends/preload/engine_loader.hpp"

namespace isthmus::ggml {

inline bool is_log_level_one_of(std::initializer_list<std::string_view> levels) {
  const char* level = environment_variable("ISTHMUS_LOG");
  return level != nullptr && std::find(levels.begin(), levels.end(), level) != levels.end();
}

inline void print_log(const char* prefix, const std::string& text) {
  preload::print_line("ggml", "%s%s", prefix, text.c_str());
}

// Prints why a requested feature is not used. Prints each text once per process. ISTHMUS_LOG=off disables it.
inline void warn_once(const std::string& text) noexcept try {
  if (is_log_level_one_of({"off"})) return;
  static std::mutex mutex;
  static std::set<std::string>* const printed =
      new std::set<std::string>;  // never freed: other threads may use it at exit
  const std::lock_guard lock(mutex);
  if (printed->insert(text).second) print_log("warning: ", text);
} catch (const std::exception&) {
  print_log("warning: ", "out of memory while printing a warning");
}

// Prints that Isthmus is in use. Prints nothing at ISTHMUS_LOG=warn, error or off.
inline void log_info(const std::string& text) noexcept {
  if (!is_log_level_one_of({"warn", "error", "off"})) print_log("", text);
}

// Prints statistics at ISTHMUS_LOG=debug or trace.
inline void log_debug(const std::string& text) noexcept {
  if (is_log_level_one_of({"debug", "trace"})) print_log("", text);
}

}  // namespace isthmus::ggml
