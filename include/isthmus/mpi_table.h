// The functions of the user's MPI that the core calls. mpi.hpp fills the table in the user's translation unit
// with the user's mpi.h, so Isthmus makes no assumptions about the MPI ABI.
// `datatype` and `op` are values of the Isthmus enumerations.
// Errors: all functions return 0 or an MPI error code; error_string converts a code to text.
#ifndef ISTHMUS_MPI_TABLE_H
#define ISTHMUS_MPI_TABLE_H

#include <isthmus/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_MPI_TABLE_MAGIC 0x4d504931u  // "MPI1"

typedef void* isthmus_mpi_comm;  // owned by the table; released with comm_free

typedef struct isthmus_mpi_table {
  size_t struct_bytes;
  uint32_t magic;
  isthmus_mpi_comm comm;  // the user's communicator
  const char* library;    // first line of MPI_Get_library_version
  int thread_level;       // 0 single, 1 funneled, 2 serialized, 3 multiple (MPI_Query_thread)
  int has_large_counts;   // 1 if MPI 4's _c functions are used; otherwise counts above INT_MAX are split

  int (*is_main_thread)(int* flag);
  int (*error_string)(int code, char* text, size_t capacity);
  int (*comm_rank)(isthmus_mpi_comm comm, int* rank);
  int (*comm_size)(isthmus_mpi_comm comm, int* size);
  int (*comm_dup)(isthmus_mpi_comm comm, isthmus_mpi_comm* duplicate);  // with MPI_ERRORS_RETURN
  int (*comm_split)(isthmus_mpi_comm comm, int color, int key, isthmus_mpi_comm* subcommunicator);
  int (*comm_free)(isthmus_mpi_comm comm);
  int (*comm_abort)(isthmus_mpi_comm comm, int code);

  // Executes any operation of the collective table, including send and recv, and blocks until it is complete.
  // The reduction op avg is passed as sum, because the backend divides. In-place buffers are recognized by the
  // rules of the collective table.
  // Buffers: host pointers, and device pointers if device_platforms and has_native_reduction allow it. Some
  // calls do not allow device pointers, because the table copies on the host: broadcast with two buffers on
  // root, and in-place reduce_scatter, reduce_scatterv, alltoall and alltoallv.
  int (*collective)(isthmus_mpi_comm comm, const isthmus_operation* operation);

  // Starts a nonblocking send or recv, for groups. The table owns `request`.
  int (*start)(isthmus_mpi_comm comm, const isthmus_operation* send_or_recv, void** request);
  int (*test)(void** request, int* is_done);  // sets *request to NULL when complete
  // Cancels a request and sets *request to NULL. After this returns, a canceled receive writes nothing, but the
  // buffer of a canceled send may still be read.
  int (*cancel)(void** request);

  // Platforms whose device buffers this MPI accepts directly: a bit mask of 1u << isthmus_platform.
  uint32_t device_platforms;
  // 1 if MPI has a native reduction for this datatype and op, which accepts device buffers whenever MPI does.
  // 0 if Isthmus provides the reduction function, which reads host memory, or if the table does not support
  // the op (avg).
  int (*has_native_reduction)(isthmus_datatype datatype, isthmus_reduction_op op);

  // ULFM functions. Both are NULL, or beyond struct_bytes, if this MPI does not support ULFM.

  // Creates a communicator of the surviving ranks. Collective over them.
  int (*comm_shrink)(isthmus_mpi_comm comm, isthmus_mpi_comm* survivors);
  // Ends all waits in this communicator, on all ranks. At thread level 3, any thread may call it.
  int (*comm_revoke)(isthmus_mpi_comm comm);
} isthmus_mpi_table;

// The size of a table of the first version.
#define ISTHMUS_MPI_TABLE_MIN_BYTES offsetof(isthmus_mpi_table, comm_shrink)

#ifdef __cplusplus
}
#endif
#endif
