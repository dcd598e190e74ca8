/* Spawns two processes of this program and calls MPI_Allreduce with them. The root prints "N wrong". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong_sums(MPI_Comm comm) {
  int size, wrong = 0;
  MPI_Comm_size(comm, &size);
  for (int i = 0; i < 40; ++i) {
    int sum = 0;
    MPI_Allreduce(&i, &sum, 1, MPI_INT, MPI_SUM, comm);
    wrong += sum != i * size;
  }
  return wrong;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm parent, others, all;
  MPI_Comm_get_parent(&parent);
  const int is_child = parent != MPI_COMM_NULL;
  const int is_preloaded = getenv("ISTHMUS_MPI_ALL_RANKS") != NULL && getenv("LD_PRELOAD") != NULL;
  if (is_child)
    others = parent;
  else
    MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others, MPI_ERRCODES_IGNORE);
  MPI_Intercomm_merge(others, is_child, &all);
  int wrong = wrong_sums(all) + wrong_sums(MPI_COMM_WORLD), preloaded = 0, rank;
  MPI_Allreduce(&is_preloaded, &preloaded, 1, MPI_INT, MPI_SUM, all);
  MPI_Comm_rank(all, &rank);
  if (rank == 0) printf("%d wrong, %d preloaded\n", wrong, preloaded);
  MPI_Comm_free(&all);
  MPI_Comm_disconnect(&others);
  MPI_Finalize();
  return 0;
}
