#include "copy_refusal.hpp"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace shm_test {
namespace {

constexpr uid_t other_user = 12345;
std::atomic<int> copies_before_change{-1}, refusal_count{0};

bool change_user() { return ::setresuid(other_user, other_user, other_user) == 0; }

// Replaces the C library's function, so that the user changes at a known copy. The kernel decides as usual.
ssize_t copy(long number, pid_t process, const iovec* local, unsigned long local_count, const iovec* remote,
             unsigned long remote_count, unsigned long flags) {
  if (process != ::getpid() && copies_before_change >= 0 && copies_before_change-- == 0 && !change_user())
    ::_exit(9);
  const ssize_t result = ::syscall(number, process, local, local_count, remote, remote_count, flags);
  if (result < 0 && errno == EPERM) ++refusal_count;
  return result;
}

void install_filter(bool allows_reads) {
  constexpr unsigned refuse = SECCOMP_RET_ERRNO | EPERM;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allows_reads ? ~0u : unsigned{SYS_process_vm_readv}, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, refuse)};
  const sock_fprog filter{std::size(program), program};
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
            ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
        "cannot install a seccomp filter");
}

}  // namespace

void refuse_copies(copy_refusal reason) {
  switch (reason) {
    case copy_refusal::user: return check(change_user(), "cannot change the user");
    case copy_refusal::user_in_message: copies_before_change = 2; return;
    case copy_refusal::seccomp: return install_filter(false);
    case copy_refusal::seccomp_writes: return install_filter(true);
  }
}

int refused_copies() { return refusal_count; }

}  // namespace shm_test

extern "C" {

ssize_t process_vm_readv(pid_t process, const iovec* local, unsigned long local_count, const iovec* remote,
                         unsigned long remote_count, unsigned long flags) {
  return shm_test::copy(SYS_process_vm_readv, process, local, local_count, remote, remote_count, flags);
}

ssize_t process_vm_writev(pid_t process, const iovec* local, unsigned long local_count, const iovec* remote,
                          unsigned long remote_count, unsigned long flags) {
  return shm_test::copy(SYS_process_vm_writev, process, local, local_count, remote, remote_count, flags);
}

}  // extern "C"
