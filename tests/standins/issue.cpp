#include "issue.hpp"

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "control.hpp"

namespace standin {
namespace {

enum result : int { success = 0, internal_error = 3, invalid_argument = 4, invalid_usage = 5 };

// The open group of the calling thread: requests by communicator, in order of first use.
struct group_state {
  int depth = 0;
  int error = 0;  // error of a call inside the group: nothing starts
  std::vector<std::pair<standin_comm*, std::vector<request>>> work;
  std::vector<std::function<int()>> setups;
};

group_state& open_group() {
  thread_local group_state instance;
  return instance;
}

// Same checks as NCCL's.
bool is_invalid(const standin_comm& comm, const request& call) {
  constexpr int datatypes = 12, operations = 6;  // one user-defined operation
  const bool missing = call.send == nullptr && call.recv == nullptr && call.count != 0;
  return call.datatype < 0 || call.datatype >= datatypes || call.op < 0 || call.op >= operations ||
         call.root < 0 || call.root >= comm.size || missing;
}

// Communicators that one thread creates wait for each other, so each gets a thread.
int run_setups(std::vector<std::function<int()>> setups) {
  std::atomic<int> first{success};
  {
    std::vector<std::jthread> threads;
    for (auto& setup : setups)
      threads.emplace_back([&first, work = std::move(setup)] {
        if (const int code = work()) first = code;
      });
  }
  return first;
}

}  // namespace

bool defer(std::function<int()> setup) {
  group_state& group = open_group();
  if (group.depth > 0) group.setups.push_back(std::move(setup));
  return group.depth > 0;
}

int issue(const char* function, void* handle, request call) {
  auto* const comm = static_cast<standin_comm*>(handle);
  if (const int code = record_call(function)) {
    if (open_group().depth > 0) open_group().error = code;
    return code;
  }
  if (comm == nullptr || comm->boxes == nullptr) return invalid_argument;
  if (comm->abort_flag->load()) return internal_error;
  group_state& group = open_group();
  if (is_invalid(*comm, call)) {
    if (group.depth > 0) group.error = invalid_argument;
    return invalid_argument;
  }
  if (group.depth == 0) {
    launch(*comm, {call});
    return success;
  }
  for (auto& [known, calls] : group.work)
    if (known == comm) return calls.push_back(call), success;
  group.work.push_back({comm, {call}});
  return success;
}

int start_group() { return ++open_group().depth, success; }

int end_group(const char* function) {
  group_state& group = open_group();
  if (group.depth == 0) return invalid_usage;
  if (--group.depth > 0) return success;
  auto work = std::exchange(group.work, {});
  if (const int code = run_setups(std::exchange(group.setups, {}))) return code;
  if (const int code = std::exchange(group.error, 0)) return code;
  if (const int code = record_call(function)) return code;
  for (auto& [comm, calls] : work) launch(*comm, std::move(calls));
  return success;
}

int simulate_group_end() {
  group_state& group = open_group();
  if (group.depth == 0) return invalid_usage;
  if (--group.depth == 0) group = {};
  return success;
}

}  // namespace standin
