// Preloaded into the ranks of tests. A rank that polls sleeps instead of yielding its core, so ranks that wait for
// each other or for a timeout leave the cores to other tests. The longer a wait lasts, the longer is each sleep.
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { min_sleep_ns = 1000, max_sleep_ns = 1000000, max_poll_ns = 5000 };

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

int sched_yield(void) {
  static _Thread_local long long previous_end_ns;
  static _Thread_local long sleep_ns;
  if (now_ns() - previous_end_ns > max_poll_ns) sleep_ns = min_sleep_ns;  // the rank has worked since
  const struct timespec sleep = {0, sleep_ns};
  const int result = nanosleep(&sleep, NULL);
  sleep_ns += sleep_ns < max_sleep_ns ? sleep_ns / 64 : 0;
  previous_end_ns = now_ns();
  return result;
}

// MPICH's collectives for shared memory spin without yielding.
__attribute__((constructor)) static void select_yielding_collectives(void) {
  setenv("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM", "mpir", 0);
}
