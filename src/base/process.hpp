// What the kernel says about a process of this machine.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus {

enum class process_state : std::uint8_t {
  alive,
  stopped,  // every thread, by a signal or a debugger: none is inside a system call
  exited      // ended, whether or not its parent has taken notice
};

// When it started, in the kernel's ticks: tells a process from a later one of the same number. 0: unknown.
std::uint64_t process_start_time(std::int64_t pid) noexcept;

// A few system calls; for failures, not for the call path. With `start` a later process of that number is none.
process_state read_process_state(std::int64_t pid, std::uint64_t start = 0) noexcept;

// The pid namespace of this process: in another one the numbers mean other processes. 0: unknown.
std::uint64_t current_pid_namespace() noexcept;

// The kernel's id of this machine since it started; monotonic clocks of one boot agree. "": unknown.
std::string current_boot_id();

}  // namespace isthmus
