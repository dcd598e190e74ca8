// Preloaded into the ranks of tests. A rank that polls sleeps instead of yielding its core, so ranks that wait for
// each other or for a timeout leave the cores to other tests.
#include <sched.h>
#include <stdlib.h>
#include <time.h>

int sched_yield(void) {
  const struct timespec shortest_sleep = {0, 1};
  return nanosleep(&shortest_sleep, NULL);
}

// MPICH's collectives for shared memory spin without yielding.
__attribute__((constructor)) static void select_yielding_collectives(void) {
  setenv("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM", "mpir", 0);
  setenv("MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM", "mpir", 0);
}
