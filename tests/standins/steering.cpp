#include "steering.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine.hpp"
#include "standin.h"

namespace standin {
namespace {

struct desk {
  std::mutex mutex;
  std::string calls;
  std::map<std::string, std::pair<int, int>> failures;  // function -> calls left, code
  std::atomic<int> version{22809};
  std::atomic<bool> hang{false};
  std::atomic<int> live{0};
};

desk& the_desk() {
  static desk only;
  return only;
}

}  // namespace

int enter(const char* function) {
  desk& state = the_desk();
  const std::lock_guard lock(state.mutex);
  state.calls += std::string(function) + "\n";
  const auto failure = state.failures.find(function);
  if (failure == state.failures.end() || --failure->second.first > 0) return 0;
  const int code = failure->second.second;
  state.failures.erase(failure);
  return code;
}

int reported_version() {
  // Processes that a test starts are steered by their environment.
  if (const char* version = std::getenv("STANDIN_VERSION")) return std::atoi(version);
  return the_desk().version;
}
bool init_hangs() { return the_desk().hang; }
void count_communicators(int change) { the_desk().live += change; }

}  // namespace standin

using standin::the_desk;

extern "C" {
void standin_set_version(int version) { the_desk().version = version; }
void standin_hang_init(int hang) { the_desk().hang = hang != 0; }
void standin_fail_half_way(int code) { standin::half_way_code = code; }
int standin_live_communicators(void) { return the_desk().live; }

void standin_fail(const char* function, int nth, int code) {
  const std::lock_guard lock(the_desk().mutex);
  the_desk().failures[function] = {nth, code};
}

size_t standin_calls(char* text, size_t capacity) {
  const std::lock_guard lock(the_desk().mutex);
  const std::string& calls = the_desk().calls;
  if (capacity != 0) {
    const size_t length = std::min(calls.size(), capacity - 1);
    std::memcpy(text, calls.data(), length);
    text[length] = '\0';
  }
  return calls.size() + 1;
}

void standin_clear_calls(void) {
  const std::lock_guard lock(the_desk().mutex);
  the_desk().calls.clear();
}
}
