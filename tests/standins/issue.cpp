#include <utility>

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
};

group& open_group() {
  thread_local group only;
  return only;
}

}  // namespace

int issue(const char* function, void* handle, request call) {
  auto* const comm = static_cast<communicator*>(handle);
  if (const int code = enter(function)) {
    if (open_group().depth > 0) open_group().error = code;
    return code;
  }
  if (comm == nullptr || comm->wires == nullptr) return invalid_argument;
  if (comm->abort_flag->load()) return internal_error;
  group& open = open_group();
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
  if (const int code = std::exchange(open.error, 0)) return code;
  if (const int code = enter(function)) return code;
  for (auto& [comm, calls] : work) launch(*comm, std::move(calls));
  return success;
}

}  // namespace standin
