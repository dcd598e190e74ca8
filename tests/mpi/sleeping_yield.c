// Preloaded into the ranks of tests. A rank that polls sleeps instead of yielding its core, so ranks that wait for
// each other or for a timeout leave the cores to other tests.
#include <sched.h>
#include <time.h>

int sched_yield(void) {
  const struct timespec shortest_sleep = {0, 1};
  return nanosleep(&shortest_sleep, NULL);
}
