// State and identity of processes of this machine, as reported by the kernel. Compiled into preloaded libraries too, so it
// does not use fmt.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus {

enum class process_state : std::uint8_t {
  alive,
  stopped,  // all threads are stopped by a signal or a debugger, none is in a system call
  exited    // terminated, whether or not its parent has reaped it
};

// Returns the start time in kernel ticks, or 0 if unknown. It distinguishes a process from a later process with
// the same pid.
std::uint64_t process_start_time(std::int64_t pid) noexcept;

// Returns the pid of the process's parent, or 0 if unknown.
std::int64_t parent_process(std::int64_t pid) noexcept;

// Returns true if the process has exited, whether or not its parent has reaped it. If `start` is not 0, a later
// process with the same pid counts as exited. Needs no descriptor between two calls, so waits can check any
// number of peers.
bool has_process_exited(std::int64_t pid, std::uint64_t start = 0) noexcept;

// Makes several system calls per thread of the process, so use it to report a failure.
process_state read_process_state(std::int64_t pid, std::uint64_t start = 0) noexcept;

// Returns the pid namespace of this process, or 0 if unknown. Pids are only comparable within one namespace.
std::uint64_t current_pid_namespace() noexcept;

// Returns the kernel's boot id, or "" if unknown. Monotonic clocks are only comparable within one boot.
std::string current_boot_id();

}  // namespace isthmus
