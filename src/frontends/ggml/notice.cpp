#include "frontends/ggml/notice.hpp"

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

bool log_is_one_of(std::initializer_list<std::string_view> levels) {
  const char* level = std::getenv("ISTHMUS_LOG");
  return level != nullptr && std::find(levels.begin(), levels.end(), level) != levels.end();
}

void write(const char* kind, const std::string& text) {
  std::fprintf(stderr, "isthmus: ggml: %s%s\n", kind, text.c_str());
}

}  // namespace

void warn_once(const std::string& text) noexcept try {
  if (log_is_one_of({"off"})) return;
  static std::mutex mutex;
  static std::set<std::string>* const said = new std::set<std::string>;  // outlives other threads at the end
  const std::lock_guard lock(mutex);
  if (said->insert(text).second) write("warning: ", text);
} catch (const std::exception&) {
  write("warning: ", "no memory for a warning");
}

void inform(const std::string& text) noexcept {
  if (!log_is_one_of({"warn", "error", "off"})) write("", text);
}

void report(const std::string& text) noexcept {
  if (log_is_one_of({"debug", "trace"})) write("", text);
}

}  // namespace isthmus::ggml
