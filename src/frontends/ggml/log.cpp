#include "frontends/ggml/log.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string_view>

namespace isthmus::ggml {
namespace {

bool is_log_level_one_of(std::initializer_list<std::string_view> levels) {
  const char* level = std::getenv("ISTHMUS_LOG");
  return level != nullptr && std::find(levels.begin(), levels.end(), level) != levels.end();
}

void print(const char* prefix, const std::string& text) {
  std::fprintf(stderr, "isthmus: ggml: %s%s\n", prefix, text.c_str());
}

}  // namespace

void warn_once(const std::string& text) noexcept try {
  if (is_log_level_one_of({"off"})) return;
  static std::mutex mutex;
  static std::set<std::string>* const printed =
      new std::set<std::string>;  // never freed: other threads may use it at exit
  const std::lock_guard lock(mutex);
  if (printed->insert(text).second) print("warning: ", text);
} catch (const std::exception&) {
  print("warning: ", "out of memory while printing a warning");
}

void log_info(const std::string& text) noexcept {
  if (!is_log_level_one_of({"warn", "error", "off"})) print("", text);
}

void log_debug(const std::string& text) noexcept {
  if (is_log_level_one_of({"debug", "trace"})) print("", text);
}

}  // namespace isthmus::ggml
