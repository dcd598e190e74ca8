/* An MPI program without any use of Isthmus. test_preload.py runs it with and without the preloaded library.
   Usage: program MODE
   Modes: collectives, mixed, progress, threads, errors, aborts, killed, forks,
   large, user, freed, late */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, size, failures;

static void expect(int condition, const char* description) {
  if (condition) return;
  ++failures;
  printf("rank %d: wrong: %s\n", rank, description);
}

/* MPICH 4.0 rejects MPI_BOTTOM in these functions. The preloaded library calls these definitions. */
#define REJECT_BOTTOM(name, buffer, parameters, arguments)              \
  int name parameters {                                                 \
    int(*next) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
    if (buffer == MPI_BOTTOM) abort();                                  \
    return next arguments;                                              \
  }
#define PACK(name, Count)                                                                                   \
  REJECT_BOTTOM(                                                                                            \
      name, in,                                                                                             \
      (const void* in, Count n, MPI_Datatype type, void* out, Count bytes, Count* position, MPI_Comm comm), \
      (in, n, type, out, bytes, position, comm))
#define UNPACK(name, Count)                                                                                 \
  REJECT_BOTTOM(                                                                                            \
      name, out,                                                                                            \
      (const void* in, Count bytes, Count* position, void* out, Count n, MPI_Datatype type, MPI_Comm comm), \
      (in, bytes, position, out, n, type, comm))
PACK(PMPI_Pack, int)
UNPACK(PMPI_Unpack, int)
#if MPI_VERSION >= 4
PACK(PMPI_Pack_c, MPI_Count)
UNPACK(PMPI_Unpack_c, MPI_Count)
#endif

static void expect_sum(const double* result, int count, const char* description) {
  for (int i = 0; i < count; ++i)
    if (result[i] != size * (size - 1) / 2.0 + i * size) {
      expect(0, description);
      return;
    }
}

static void fill(double* data, int count) {
  for (int i = 0; i < count; ++i) data[i] = rank + i;
}

static void reductions(int count, MPI_Comm comm) {
  double* in = malloc(sizeof(double) * (size_t)(count * size));
  double* out = malloc(sizeof(double) * (size_t)(count * size));
  fill(in, count);
  MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, count, "allreduce");
  memcpy(out, in, sizeof(double) * (size_t)count);
  MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, count, "allreduce in place");
  MPI_Reduce(in, out, count, MPI_DOUBLE, MPI_SUM, size - 1, comm);
  if (rank == size - 1) expect_sum(out, count, "reduce");
  memcpy(out, in, sizeof(double) * (size_t)count);
  MPI_Reduce(rank == 0 ? MPI_IN_PLACE : out, rank == 0 ? out : NULL, count, MPI_DOUBLE, MPI_SUM, 0, comm);
  if (rank == 0) expect_sum(out, count, "reduce in place");
  int* counts = malloc(sizeof(int) * (size_t)size);
  for (int r = 0; r < size; ++r) {
    fill(in + r * count, count);
    counts[r] = count;
  }
  MPI_Reduce_scatter_block(in, out, count, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, count, "reduce_scatter_block");
  MPI_Reduce_scatter(in, out, counts, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, count, "reduce_scatter");
  MPI_Reduce_scatter_block(MPI_IN_PLACE, in, count, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(in, count, "reduce_scatter_block in place");
  free(counts);
  free(in);
  free(out);
}

/* Element i of the block that rank `source` sends to rank `destination`. */
static int element_value(int source, int destination, int i) {
  return source * 10000 + destination * 100 + i % 100;
}

static void expect_blocks(const int* result, int count, int destination, const char* description) {
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < count; ++i)
      if (result[r * count + i] != element_value(r, destination, i)) {
        expect(0, description);
        return;
      }
}

static void data_movement(int count, MPI_Comm comm) {
  const size_t bytes = sizeof(int) * (size_t)(count * size);
  int *in = malloc(bytes), *out = malloc(bytes);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < count; ++i) in[r * count + i] = element_value(rank, r, i);
  int* own = malloc(sizeof(int) * (size_t)count);
  for (int i = 0; i < count; ++i) own[i] = element_value(rank, 0, i);
  MPI_Alltoall(in, count, MPI_INT, out, count, MPI_INT, comm);
  expect_blocks(out, count, rank, "alltoall");
  memcpy(out, in, bytes);
  MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, count, MPI_INT, comm);
  expect_blocks(out, count, rank, "alltoall in place");
  MPI_Allgather(own, count, MPI_INT, out, count, MPI_INT, comm);
  expect_blocks(out, count, 0, "allgather");
  memset(out, 0, bytes);
  memcpy(out + rank * count, own, sizeof(int) * (size_t)count);
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, count, MPI_INT, comm);
  expect_blocks(out, count, 0, "allgather in place");
  MPI_Gather(own, count, MPI_INT, out, count, MPI_INT, 0, comm);
  if (rank == 0) expect_blocks(out, count, 0, "gather");
  MPI_Scatter(in, count, MPI_INT, rank == 0 ? MPI_IN_PLACE : own, count, MPI_INT, 0, comm);
  for (int i = 0; rank != 0 && i < count; ++i) expect(own[i] == element_value(0, rank, i), "scatter");
  MPI_Bcast(in, count * size, MPI_INT, size - 1, comm);
  expect(in[count * size - 1] == element_value(size - 1, size - 1, count - 1), "bcast");
  MPI_Barrier(comm);
  free(own);
  free(in);
  free(out);
}

/* Blocks of r + 1 elements with gaps, in reverse order of the ranks. */
static void irregular_collectives(MPI_Comm comm) {
  int counts[16], displs[16], send_counts[16], send_displs[16], in[256], out[256], result[256], total = 0;
  for (int r = 0; r < size; ++r) {
    counts[r] = r + 1;
    displs[r] = (size - 1 - r) * (size + 2);
    send_counts[r] = rank + 1;
    send_displs[r] = r * (rank + 1);
    total += counts[r];
  }
  for (int i = 0; i < 256; ++i) in[i] = 1000 * rank + i, out[i] = result[i] = -1;
  MPI_Allgatherv(in, rank + 1, MPI_INT, out, counts, displs, MPI_INT, comm);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < counts[r]; ++i) expect(out[displs[r] + i] == 1000 * r + i, "allgatherv");
  expect(out[displs[0] + 1] == -1, "allgatherv wrote into a gap");
  MPI_Gatherv(in, rank + 1, MPI_INT, result, counts, displs, MPI_INT, 0, comm);
  if (rank == 0) expect(memcmp(result, out, sizeof out) == 0, "gatherv");
  int* own = malloc(sizeof(int) * (size_t)(rank + 1));
  MPI_Scatterv(out, counts, displs, MPI_INT, own, rank + 1, MPI_INT, 0, comm);
  for (int i = 0; i <= rank; ++i) expect(own[i] == 1000 * rank + i, "scatterv");
  MPI_Alltoallv(in, send_counts, send_displs, MPI_INT, result, counts, displs, MPI_INT, comm);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < counts[r]; ++i)
      expect(result[displs[r] + i] == 1000 * r + rank * (r + 1) + i, "alltoallv");
  free(own);
  /* Sums of uneven contiguous blocks. Rank 0 receives none. */
  int numbers[256], sums[256], begin = 0;
  for (int r = 0; r < size; ++r) counts[r] = 2 * r;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  for (int i = 0; i < 256; ++i) numbers[i] = rank + i, sums[i] = -1;
  MPI_Reduce_scatter(numbers, sums, counts, MPI_INT, MPI_SUM, comm);
  MPI_Reduce_scatter(MPI_IN_PLACE, numbers, counts, MPI_INT, MPI_SUM, comm);
  for (int i = 0; i < counts[rank]; ++i) {
    expect(sums[i] == size * (size - 1) / 2 + size * (begin + i), "reduce_scatter of uneven blocks");
    expect(numbers[i] == sums[i], "reduce_scatter of uneven blocks in place");
  }
  expect(sums[counts[rank]] == -1, "reduce_scatter wrote beyond its block");
}

#if MPI_VERSION >= 4
/* Functions with MPI_Count counts and MPI_Aint displacements. */
static void wide_counts(MPI_Comm comm) {
  double in[48], out[48];
  MPI_Count counts[16];
  MPI_Aint displs[16];
  fill(in, 3);
  MPI_Allreduce_c(in, out, 3, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, 3, "allreduce_c");
  MPI_Reduce_c(in, out, 3, MPI_DOUBLE, MPI_SUM, 0, comm);
  if (rank == 0) expect_sum(out, 3, "reduce_c");
  for (int r = 0; r < size; ++r) {
    fill(in + 3 * r, 3);
    counts[r] = 3;
    displs[r] = 3 * (size - 1 - r);
  }
  MPI_Reduce_scatter_c(in, out, counts, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, 3, "reduce_scatter_c");
  MPI_Reduce_scatter_block_c(in, out, 3, MPI_DOUBLE, MPI_SUM, comm);
  expect_sum(out, 3, "reduce_scatter_block_c");
  MPI_Allgatherv_c(in, 3, MPI_DOUBLE, out, counts, displs, MPI_DOUBLE, comm);
  for (int r = 0; r < size; ++r) expect(out[displs[r] + 2] == r + 2, "allgatherv_c");
  MPI_Alltoallv_c(in, counts, displs, MPI_DOUBLE, out, counts, displs, MPI_DOUBLE, comm);
  for (int r = 0; r < size; ++r) expect(out[displs[r] + 2] == r + 2, "alltoallv_c");
  in[0] = rank;
  MPI_Bcast_c(in, 1, MPI_DOUBLE, size - 1, comm);
  expect(in[0] == size - 1, "bcast_c");
  in[0] = rank;
  MPI_Allgather_c(in, 1, MPI_DOUBLE, out, 1, MPI_DOUBLE, comm);
  for (int r = 0; r < size; ++r) expect(out[r] == r, "allgather_c");
}
#else
static void wide_counts(MPI_Comm comm) { (void)comm; }
#endif

#if MPI_VERSION >= 4
/* More bytes and more elements than an int can count. The buffer maps one chunk of memory repeatedly, so all
   repetitions hold the same data. The chunk size is not a power of 2, so an offset that is wrong by 2^32 gives
   wrong data. */
static void large(void) {
  enum { chunk = 257 * 4096, block = 4096, blocks = (1 << 19) + 3 };
  const size_t bytes = (size_t)block * blocks;
  const int file = memfd_create("piece", 0);
  unsigned char* data =
      mmap(NULL, bytes + chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  expect(file >= 0 && ftruncate(file, chunk) == 0 && data != MAP_FAILED, "memory");
  for (size_t offset = 0; offset < bytes; offset += chunk)
    mmap(data + offset, chunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0);
  for (int i = 0; i < chunk; ++i) data[i] = rank == 0 ? (unsigned char)(i * 131 / 7) : 0xee;
  MPI_Datatype page;
  MPI_Type_contiguous(block, MPI_BYTE, &page);
  MPI_Type_commit(&page);
  MPI_Bcast(data, blocks, page, 0, MPI_COMM_WORLD);
  int different = 0;
  for (int i = 0; i < chunk; ++i) different += data[i] != (unsigned char)(i * 131 / 7);
  expect(different == 0, "a broadcast of more than 2 GiB");
  for (int i = 0; i < chunk; ++i) data[i] = (unsigned char)(i % 100 + 50 * rank);
  MPI_Allreduce_c(MPI_IN_PLACE, data, (MPI_Count)bytes, MPI_UINT8_T, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < chunk; ++i) different += data[i] != i % 100 + 50 * (size - 1);
  expect(different == 0, "an allreduce of more than 2^31 elements");
  MPI_Type_free(&page);
  munmap(data, bytes + chunk);
  close(file);
}
#else
static void large(void) {}
#endif

static void max_operator(void* in, void* inout, int* n, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *n; ++i)
    if (((int*)in)[i] > ((int*)inout)[i]) ((int*)inout)[i] = ((int*)in)[i];
}

/* Signatures match, but datatypes and buffers differ, so a rank's own datatype must not decide who executes a call. */
static void mixed_calls(void) {
  MPI_Datatype strided_type;
  MPI_Type_vector(3, 1, 2, MPI_INT, &strided_type);
  MPI_Type_commit(&strided_type);
  for (int root = 0; root < size; ++root) {
    int strided[6] = {7, -1, 8, -1, 9, -1}, dense[3] = {7, 8, 9};
    const int is_strided = (rank + root) % 2;
    if (rank != root) memset(dense, 0, sizeof dense), strided[0] = strided[2] = strided[4] = 0;
    if (is_strided)
      MPI_Bcast(strided, 1, strided_type, root, MPI_COMM_WORLD);
    else
      MPI_Bcast(dense, 3, MPI_INT, root, MPI_COMM_WORLD);
    expect(is_strided ? strided[0] == 7 && strided[1] == -1 && strided[4] == 9 : dense[0] == 7 && dense[2] == 9,
           "bcast of mixed datatypes");
  }
  int all[96], own[6] = {rank, -1, rank + 1, -1, rank + 2, -1};
  if (rank % 2)
    MPI_Allgather(own, 1, strided_type, all, 3, MPI_INT, MPI_COMM_WORLD);
  else {
    const int dense[3] = {rank, rank + 1, rank + 2};
    MPI_Allgather(dense, 3, MPI_INT, all, 3, MPI_INT, MPI_COMM_WORLD);
  }
  for (int r = 0; r < size; ++r)
    expect(all[3 * r] == r && all[3 * r + 2] == r + 2, "allgather of mixed datatypes");
  /* Blocks of one or two strided elements, whose extent is 5 integers. */
  int counts[8], displs[8];
  const int values[6] = {rank, rank + 1, rank + 2, rank + 3, rank + 4, rank + 5};
  for (int i = 0; i < 96; ++i) all[i] = -2;
  for (int r = 0; r < size; ++r) counts[r] = 1 + r % 2, displs[r] = 2 * r;
  MPI_Allgatherv(values, 3 * counts[rank], MPI_INT, all, counts, displs, strided_type, MPI_COMM_WORLD);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < 10; ++i) {
      const int element = i / 5, place = i % 5, is_set = element < counts[r] && place % 2 == 0;
      expect(all[10 * r + i] == (is_set ? r + 3 * element + place / 2 : -2), "allgatherv into a strided type");
    }
  MPI_Aint address;
  MPI_Datatype absolute;
  int root_value = rank == 0 ? 41 : 0;
  const int one = 1;
  MPI_Get_address(&root_value, &address);
  MPI_Type_create_hindexed(1, &one, &address, MPI_INT, &absolute);
  MPI_Type_commit(&absolute);
  MPI_Bcast(MPI_BOTTOM, 1, absolute, 0, MPI_COMM_WORLD);
  expect(root_value == 41, "bcast at MPI_BOTTOM");
  struct {
    int value, place;
  } pair = {rank, rank}, best;
  MPI_Allreduce(&pair, &best, 1, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD);
  expect(best.place == size - 1, "maxloc");
  MPI_Op user_op;
  int max_rank = 0;
  MPI_Op_create(max_operator, 1, &user_op);
  MPI_Allreduce(&rank, &max_rank, 1, MPI_INT, user_op, MPI_COMM_WORLD);
  expect(max_rank == size - 1, "a user-defined operation");
  MPI_Allreduce(&rank, &max_rank, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm half, inter;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  for (int i = 0; i < 3; ++i) MPI_Allreduce(MPI_IN_PLACE, &max_rank, 1, MPI_INT, MPI_MAX, half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &inter);
  MPI_Allreduce(&rank, &max_rank, 1, MPI_INT, MPI_MIN, inter);
  expect(max_rank == 1 - rank % 2, "an intercommunicator");
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
  MPI_Op_free(&user_op);
  MPI_Type_free(&strided_type);
  MPI_Type_free(&absolute);
}

/* After a barrier of Isthmus, a single MPI_Win_test on rank 1 must report that rank 0 completed before it, as the tests
   of mpi4py expect. MPICH's own barrier guarantees this only the first time. It executes the barriers of ranks on
   several nodes (ISTHMUS_NODE), so these ranks test the window until the completion has arrived. */
static void completed_before_barrier(void) {
  const double limit_s = getenv("ISTHMUS_NODE") == NULL ? 0 : 10;
  MPI_Group all, other;
  MPI_Win window;
  const int peer = 1 - rank;
  int place = 0, is_done = 0;
  MPI_Win_create(&place, sizeof place, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_get_group(window, &all);
  if (rank < 2) MPI_Group_incl(all, 1, &peer, &other);
  for (int i = 0; i < 50; ++i) {
    if (rank == 0) MPI_Win_start(other, 0, window);
    if (rank == 1) {
      MPI_Win_post(other, 0, window);
      MPI_Win_test(window, &is_done);
      expect(!is_done, "a window test is false before the completion");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) MPI_Win_complete(window);
    MPI_Barrier(MPI_COMM_WORLD);
    is_done = rank != 1;
    const double begin_s = MPI_Wtime();
    do {
      if (rank == 1) MPI_Win_test(window, &is_done);
    } while (!is_done && MPI_Wtime() - begin_s < limit_s);
    expect(is_done, "a window test is true after the barrier");
    if (!is_done) MPI_Win_wait(window);
  }
  if (rank < 2) MPI_Group_free(&other);
  MPI_Group_free(&all);
  MPI_Win_free(&window);
}

/* The barrier of rank 0 ends only after rank 1 has received its message, which needs progress on rank 0. */
static void progress(void) {
  const int bytes = 4 << 20;
  char* data = malloc((size_t)bytes);
  memset(data, rank == 0, (size_t)bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) MPI_Isend(data, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request);
  if (rank == 1) {
    usleep(20000);
    MPI_Recv(data, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(data[bytes - 1] == 1, "the message");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  int one = 1, sum = 0;
  MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  if (rank != 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(sum == size, "a nonblocking allreduce during a barrier");
  int* shared;
  MPI_Win window;
  MPI_Win_allocate(sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
  *shared = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) { /* the other ranks make progress in their barrier */
    usleep(20000);
    MPI_Win_lock_all(0, window);
    MPI_Put(&one, 1, MPI_INT, 1, 0, 1, MPI_INT, window);
    MPI_Win_unlock_all(window);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
  expect(rank != 1 || *shared == 1, "a put during a barrier");
  if (rank == 1) MPI_Win_unlock(1, window);
  MPI_Win_free(&window);
  completed_before_barrier();
  free(data);
}

static void* sums(void* argument) {
  const MPI_Comm comm = *(MPI_Comm*)argument;
  for (int i = 0; i < 200; ++i) {
    int result = 0;
    MPI_Allreduce(&i, &result, 1, MPI_INT, MPI_SUM, comm);
    if (result != i * size) return argument;
  }
  return NULL;
}

static void threads(void) {
  pthread_t thread_ids[3];
  MPI_Comm comms[3];
  for (int i = 0; i < 3; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < 3; ++i) pthread_create(&thread_ids[i], NULL, sums, &comms[i]);
  for (int i = 0; i < 3; ++i) {
    void* failed = NULL;
    pthread_join(thread_ids[i], &failed);
    expect(failed == NULL, "a thread's sums");
    MPI_Comm_free(&comms[i]);
  }
}

static void errors(void) {
  int value = 0, code, class_of = 0;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD);
  MPI_Error_class(code, &class_of);
  expect(class_of == MPI_ERR_ROOT, "the class of a wrong root");
  code = MPI_Allreduce(&rank, &value, -1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Error_class(code, &class_of);
  expect(class_of == MPI_ERR_COUNT, "the class of a negative count");
  code = MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(code == MPI_SUCCESS && value == size * (size - 1) / 2, "a call after errors");
}

/* Uses a freed communicator before any other call. Its handle must not have been reused by Isthmus. */
static void use_freed_communicator(void) {
  MPI_Comm copy, stale;
  int result = 0;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  stale = copy;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_free(&copy);
  expect(MPI_Barrier(stale) != MPI_SUCCESS, "a barrier on a freed communicator fails");
  expect(MPI_Allreduce(&rank, &result, 1, MPI_INT, MPI_MAX, stale) != MPI_SUCCESS,
         "an allreduce on a freed communicator fails");
}

static void late_barriers(void) {
  for (int i = 0; i < 24; ++i) {
    if (rank == 1) usleep(2000);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void forks(void) {
  const pid_t child = fork();
  if (child == 0) exit(0);
  int status = 1;
  waitpid(child, &status, 0);
  expect(status == 0, "exit status of the child");
}

static long private_bytes(void) {
  long size = 0, resident = 0, shared = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) exit(8);
  fclose(file);
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

/* Short-lived communicators leave no memory behind. */
static void communicator_cycles(void) {
  const int warm_up = 100, cycles = 500;
  long before = 0;
  for (int i = 0; i < warm_up + cycles; ++i) {
    MPI_Comm part;
    int one = 1, sum = 0;
    if (i == warm_up) before = private_bytes();
    MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &part);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, part);
    MPI_Comm_free(&part);
  }
  const long growth = private_bytes() - before;
  if (growth > 200 * 1000) printf("rank %d grew by %ld bytes in %d cycles\n", rank, growth, cycles);
  expect(growth <= 200 * 1000, "memory after short-lived communicators");
}

/* Rank r and rank s exchange count + r + s elements. */
static void long_irregular_collectives(int count) {
  int counts[16], displs[16], total = 0;
  for (int r = 0; r < size; ++r) {
    counts[r] = count + rank + r;
    displs[r] = total;
    total += counts[r];
  }
  const size_t bytes = sizeof(int) * (size_t)total;
  int *in = malloc(bytes), *out = malloc(bytes);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < counts[r]; ++i) in[displs[r] + i] = element_value(rank, r, i);
  MPI_Alltoallv(in, counts, displs, MPI_INT, out, counts, displs, MPI_INT, MPI_COMM_WORLD);
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < counts[r]; ++i)
      expect(out[displs[r] + i] == element_value(r, rank, i), "long alltoallv");
  for (int root = 0; root < size; ++root) {
    MPI_Gatherv(in + displs[root], counts[root], MPI_INT, out, counts, displs, MPI_INT, root, MPI_COMM_WORLD);
    for (int r = 0; r < size && rank == root; ++r)
      for (int i = 0; i < counts[r]; ++i)
        expect(out[displs[r] + i] == element_value(r, root, i), "long gatherv");
    MPI_Scatterv(in, counts, displs, MPI_INT, out, counts[root], MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < counts[root]; ++i) expect(out[i] == element_value(root, rank, i), "long scatterv");
  }
  free(in);
  free(out);
}

/* The kernel copies nothing between processes of different users. */
static void changed_user(void) {
  if (rank == 1 && setresuid(12345, 12345, 12345) != 0) exit(7);
  long_irregular_collectives(100000);
  reductions(100000, MPI_COMM_WORLD);
  data_movement(100000, MPI_COMM_WORLD);
}

/* Covers all thread levels. */
static int thread_level_of(const char* mode) {
  if (strcmp(mode, "collectives") == 0) return MPI_THREAD_SINGLE;
  if (strcmp(mode, "mixed") == 0) return MPI_THREAD_FUNNELED;
  return strcmp(mode, "progress") == 0 ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "collectives";
  int level;
  MPI_Init_thread(&argc, &argv, thread_level_of(mode), &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (strcmp(mode, "idle") == 0) return MPI_Finalize();
  if (strcmp(mode, "freed") == 0) use_freed_communicator();
  if (strcmp(mode, "late") == 0) late_barriers();
  const int counts[] = {1, 100, 5000, 100000};
  for (int i = 0; i < 4; ++i) {
    reductions(counts[i], MPI_COMM_WORLD);
    data_movement(counts[i], MPI_COMM_WORLD);
    if (strcmp(mode, "collectives") != 0) break;
  }
  irregular_collectives(MPI_COMM_WORLD);
  wide_counts(MPI_COMM_WORLD);
  if (strcmp(mode, "mixed") == 0) mixed_calls();
  if (strcmp(mode, "progress") == 0) progress();
  if (strcmp(mode, "threads") == 0) threads();
  if (strcmp(mode, "errors") == 0) errors();
  if (strcmp(mode, "forks") == 0) forks();
  if (strcmp(mode, "large") == 0) large();
  if (strcmp(mode, "user") == 0) changed_user();
  if (strcmp(mode, "cycles") == 0) communicator_cycles();
  if (strcmp(mode, "aborts") == 0 && rank == 0) MPI_Abort(MPI_COMM_WORLD, 23);
  if (strcmp(mode, "killed") == 0 && rank == 0) raise(SIGKILL);
  int total = 0;
  MPI_Allreduce(&failures, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d wrong\n", total);
  MPI_Finalize();
  return 0;
}
