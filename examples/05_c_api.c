/* 05: the C API without C++, SYCL or MPI. One thread drives two ranks of this process with groups. */
#include <isthmus/isthmus.h>
#include <stdio.h>

static int report(void) {
  isthmus_error_info info;
  isthmus_last_error(&info);
  fprintf(stderr, "%s: %s (%s)\n", isthmus_status_name(info.status), info.message, info.hint);
  return 1;
}

int main(void) {
  isthmus_device devices[2] = {{ISTHMUS_PLATFORM_HOST, 0}, {ISTHMUS_PLATFORM_HOST, 0}};
  isthmus_communicator ranks[2];
  if (isthmus_communicator_create_all(2, devices, NULL, ranks) != ISTHMUS_SUCCESS) return report();

  double send[2][3] = {{1, 2, 3}, {10, 20, 30}};
  double recv[2][3];
  isthmus_group_start();
  for (int r = 0; r < 2; ++r)
    isthmus_allreduce(send[r], recv[r], 3, ISTHMUS_FLOAT64, ISTHMUS_SUM, ranks[r], NULL);
  if (isthmus_group_end() != ISTHMUS_SUCCESS) return report();

  int wrong = 0;
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 3; ++i) wrong += recv[r][i] != 11.0 * (i + 1);
    printf("rank %d: %g %g %g\n", r, recv[r][0], recv[r][1], recv[r][2]);
    isthmus_communicator_destroy(ranks[r]);
  }
  return wrong == 0 ? 0 : 1;
}
