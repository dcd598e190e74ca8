#include "control.hpp"

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

struct control_state {
  std::mutex mutex;
  std::string calls;
  std::map<std::string, std::pair<int, int>> failures;  // function -> (remaining calls, code)
  std::atomic<int> version{22809};
  std::atomic<bool> init_hangs{false}, abort_hangs{false};
  std::atomic<int> live_communicators{0};
};

control_state& control() {
  static control_state only;
  return only;
}

}  // namespace

int record_call(const char* function) {
  control_state& state = control();
  const std::lock_guard lock(state.mutex);
  state.calls += std::string(function) + "\n";
  const auto failure = state.failures.find(function);
  if (failure == state.failures.end() || --failure->second.first > 0) return 0;
  const int code = failure->second.second;
  state.failures.erase(failure);
  return code;
}

int reported_version() {
  // The environment controls processes that a test starts.
  if (const char* version = std::getenv("STANDIN_VERSION")) return std::atoi(version);
  return control().version;
}
bool init_hangs() { return control().init_hangs; }
bool abort_hangs() { return control().abort_hangs; }
void count_communicators(int change) { control().live_communicators += change; }

}  // namespace standin

using standin::control;

extern "C" {
void standin_set_version(int version) { control().version = version; }
void standin_hang_init(int hang) { control().init_hangs = hang != 0; }
void standin_hang_abort(int hang) { control().abort_hangs = hang != 0; }
void standin_fail_half_way(int code) { standin::partial_failure_code = code; }
int standin_live_communicators(void) { return control().live_communicators; }

void standin_fail(const char* function, int nth, int code) {
  const std::lock_guard lock(control().mutex);
  control().failures[function] = {nth, code};
}

size_t standin_calls(char* text, size_t capacity) {
  const std::lock_guard lock(control().mutex);
  const std::string& calls = control().calls;
  if (capacity != 0) {
    const size_t length = std::min(calls.size(), capacity - 1);
    std::memcpy(text, calls.data(), length);
    text[length] = '\0';
  }
  return calls.size() + 1;
}

void standin_clear_calls(void) {
  const std::lock_guard lock(control().mutex);
  control().calls.clear();
}
}
