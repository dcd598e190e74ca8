#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "steering.hpp"
#include "xccl_issue.hpp"

namespace standin {
namespace {

enum result : int { success = 0, internal_error = 3, invalid_argument = 4, invalid_usage = 5 };

// The group that the calling thread has open: requests by communicator, in order of first use.
struct group {
  int depth = 0;
  int error = 0;  // of a call inside: nothing of the group starts
  std::vector<std::pair<communicator*, std::vector<request>>> work;
  std::vector<std::function<int()>> setups;
};

group& open_group() {
  thread_local group only;
  return only;
}

// As NCCL's own check of arguments.
bool is_wrong(const communicator& comm, const request& call) {
  constexpr int datatypes = 12, operations = 6;  // one operation of the program's
  const bool missing = call.send == nullptr && call.recv == nullptr && call.count != 0;
  return call.datatype < 0 || call.datatype >= datatypes || call.op < 0 || call.op >= operations ||
         call.root < 0 || call.root >= comm.size || missing;
}

// Communicators that one thread makes meet each other.
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
  group& open = open_group();
  if (open.depth > 0) open.setups.push_back(std::move(setup));
  return open.depth > 0;
}

int issue(const char* function, void* handle, request call) {
  auto* const comm = static_cast<communicator*>(handle);
  if (const int code = enter(function)) {
    if (open_group().depth > 0) open_group().error = code;
    return code;
  }
  if (comm == nullptr || comm->wires == nullptr) return invalid_argument;
  if (comm->abort_flag->load()) return internal_error;
  group& open = open_group();
  if (is_wrong(*comm, call)) {
    if (open.depth > 0) open.error = invalid_argument;
    return invalid_argument;
  }
  if (open.depth == 0) {
    launch(*comm, {call});
    return success;
  }
  for (auto& [known, calls] : open.work)
    if (known == comm) return calls.push_back(call), success;
  open.work.push_back({comm, {call}});
  return success;
}

int start_group() { return ++open_group().depth, success; }

int end_group(const char* function) {
  group& open = open_group();
  if (open.depth == 0) return invalid_usage;
  if (--open.depth > 0) return success;
  auto work = std::exchange(open.work, {});
  if (const int code = run_setups(std::exchange(open.setups, {}))) return code;
  if (const int code = std::exchange(open.error, 0)) return code;
  if (const int code = enter(function)) return code;
  for (auto& [comm, calls] : work) launch(*comm, std::move(calls));
  return success;
}

int simulate_end_of_group() {
  group& open = open_group();
  if (open.depth == 0) return invalid_usage;
  if (--open.depth == 0) open = {};
  return success;
}

}  // namespace standin
