// The functions of the user's MPI that the core calls. mpi.hpp fills it in the user's own translation
// unit, compiled with the user's own mpi.h, so no MPI ABI is ever guessed. All functions return 0 or the
// MPI error code; `error_string` turns a code into text. Types: `datatype` and `op` are Isthmus' own.
#ifndef ISTHMUS_MPI_TABLE_H
#define ISTHMUS_MPI_TABLE_H

#include <isthmus/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_MPI_TABLE_MAGIC 0x4d504931u  // "MPI1"

typedef void* isthmus_mpi_comm;  // owned by the table's side; freed with comm_free

typedef struct isthmus_mpi_table {
  size_t struct_bytes;
  uint32_t magic;
  isthmus_mpi_comm comm;  // the user's communicator
  const char* library;    // first line of MPI_Get_library_version
  int thread_level;       // 0 single, 1 funneled, 2 serialized, 3 multiple (MPI_Query_thread)
  int has_large_counts;   // 1 when MPI 4's _c functions are used; else counts above INT_MAX are split

  int (*is_main_thread)(int* flag);
  int (*error_string)(int code, char* text, size_t capacity);
  int (*comm_rank)(isthmus_mpi_comm comm, int* rank);
  int (*comm_size)(isthmus_mpi_comm comm, int* size);
  int (*comm_dup)(isthmus_mpi_comm comm, isthmus_mpi_comm* duplicate);  // errors return on the duplicate
  int (*comm_split)(isthmus_mpi_comm comm, int color, int key, isthmus_mpi_comm* subcommunicator);
  int (*comm_free)(isthmus_mpi_comm comm);
  int (*comm_abort)(isthmus_mpi_comm comm, int code);

  // One call does any blocking collective of THE TABLE, send and recv included, on host pointers. On device
  // pointers, too, where device_platforms and has_native_reduction say so, except where it copies on the host: for a
  // broadcast's root with two buffers, and reduce_scatter(v), alltoall and alltoallv in place.
  // avg arrives as sum (the backend divides). In-place is recognised as THE TABLE defines it.
  int (*collective)(isthmus_mpi_comm comm, const isthmus_operation* operation);

  // Nonblocking point to point, for groups; `request` is the table's own.
  int (*start)(isthmus_mpi_comm comm, const isthmus_operation* send_or_recv, void** request);
  int (*test)(void** request, int* is_done);  // sets *request to NULL when done
  // Gives a request up and sets *request to NULL: a receive writes nothing once this has returned; the
  // buffer of a send may still be read.
  int (*cancel)(void** request);

  // Platforms (bit mask of 1u << isthmus_platform) whose device buffers this MPI says it takes as they are.
  uint32_t device_platforms;
  // 1 when MPI combines these with code of its own, which takes device buffers where MPI does; 0 for
  // functions of Isthmus, which read on the host, and for what the table does not reduce (avg).
  int (*has_native_reduction)(isthmus_datatype datatype, isthmus_reduction_op op);

  // ULFM: NULL, or beyond struct_bytes, where this MPI lacks it. The ranks that live; collective over them.
  int (*comm_shrink)(isthmus_mpi_comm comm, isthmus_mpi_comm* survivors);
  // Ends, on all ranks, what waits in this communicator. Any thread, at thread level 3.
  int (*comm_revoke)(isthmus_mpi_comm comm);
} isthmus_mpi_table;

// What a table of the first version had.
#define ISTHMUS_MPI_TABLE_MIN_BYTES offsetof(isthmus_mpi_table, comm_shrink)

#ifdef __cplusplus
}
#endif
#endif
