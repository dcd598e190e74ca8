/* Two ranks in one process with an installed library. */
#include <isthmus/isthmus.h>
#include <stdio.h>

int main(void) {
  isthmus_device devices[2] = {{ISTHMUS_PLATFORM_HOST, 0}, {ISTHMUS_PLATFORM_HOST, 0}};
  isthmus_communicator ranks[2];
  isthmus_error_info error;
  if (isthmus_communicator_create_all(2, devices, NULL, ranks) != ISTHMUS_SUCCESS) {
    isthmus_last_error(&error);
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  float a[2] = {1, 2}, b[2] = {10, 20};
  isthmus_group_start();
  isthmus_allreduce(a, a, 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[0], NULL);
  isthmus_allreduce(b, b, 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[1], NULL);
  if (isthmus_group_end() == ISTHMUS_SUCCESS) printf("%g %g\n", a[1], b[1]);
  isthmus_communicator_destroy(ranks[0]);
  isthmus_communicator_destroy(ranks[1]);
  return 0;
}
