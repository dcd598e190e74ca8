// Makes the kernel refuse copies between processes in the middle of a test, as for a program that drops its
// privileges. The test must run as root.
#pragma once

#include "rank_runner.hpp"

namespace shm_test {

enum class copy_refusal {
  user,             // the process becomes another user
  user_in_message,  // the same, after its second copy from then on
  seccomp,          // a filter forbids the calling thread to copy
  seccomp_writes    // a filter forbids the calling thread to copy into other processes
};
inline constexpr copy_refusal copy_refusals[] = {copy_refusal::user, copy_refusal::user_in_message,
                                                 copy_refusal::seccomp, copy_refusal::seccomp_writes};

// For a rank of a child process. Throws if it is not possible.
void refuse_copies(copy_refusal reason);
// Copies that the kernel has refused in this process.
int refused_copies();

}  // namespace shm_test
