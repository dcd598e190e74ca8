// The C API of Isthmus: collectives, point-to-point operations and groups for accelerators and hosts.
// It needs no SYCL, MPI or vendor header.
//
// Errors:
//   Every function returns an isthmus_status. isthmus_last_error() describes the calling thread's most recent
//   failure. A call that fails validation writes nothing. If an operation fails after it started, the
//   communicator is aborted: on every rank, later calls return ISTHMUS_ERROR_ABORTED until the communicator is
//   destroyed. No rank waits longer than the communicator's timeout.
//
// Ordering:
//   Device platforms: an operation is ordered by its stream and does not block the host.
//   Host platform: a call returns when this rank's part is complete and its buffers can be reused.
//   All ranks must issue the collectives of a communicator in the same order, with the same arguments. The shared-memory
//   backend reports different calls as MISMATCH. For all other paths, run the program once with ISTHMUS_CHECK=1.
//   If they use several streams, each call must wait for the previous one (record an event), because the calls share
//   signals and staging memory.
//
// Thread safety:
//   Calls on different communicators may run concurrently. Calls on one communicator must not overlap.
//   Exceptions: isthmus_communicator_abort() and isthmus_communicator_abort_local() may be called from any
//   thread at any time. Queries of names, sizes and the last error are always safe. A thread must not be canceled or
//   end inside a call (pthread_cancel, pthread_exit): the process would end in std::terminate.
// Functions that only tools and front ends need are declared in tools.h.
#ifndef ISTHMUS_ISTHMUS_H
#define ISTHMUS_ISTHMUS_H

#include <isthmus/types.h>

#if defined(__GNUC__)
#define ISTHMUS_API __attribute__((visibility("default")))
#else
#define ISTHMUS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct isthmus_mpi_table;    // mpi_table.h; mpi.hpp fills it from the user's own mpi.h
struct isthmus_store_table;  // bootstrap through the caller's key-value store, see below

// ---- names and errors -------------------------------------------------------------------------------

// Returns the version as "major.minor.patch", in static storage.
ISTHMUS_API const char* isthmus_version(void);

// These functions return the name of a value in the collective table (collectives.def), or NULL if the value is
// out of range. C, Python, configuration and logs use the same names.
ISTHMUS_API const char* isthmus_collective_name(isthmus_collective collective);
ISTHMUS_API const char* isthmus_datatype_name(isthmus_datatype datatype);
ISTHMUS_API const char* isthmus_reduction_op_name(isthmus_reduction_op op);
ISTHMUS_API const char* isthmus_platform_name(isthmus_platform platform);
ISTHMUS_API const char* isthmus_status_name(isthmus_status status);
// Returns the size of one element in bytes; 0 if the datatype is out of range.
ISTHMUS_API size_t isthmus_datatype_bytes(isthmus_datatype datatype);

// Describes the calling thread's most recent failure; the status is ISTHMUS_SUCCESS if there is
// none. Never fails.
ISTHMUS_API void isthmus_last_error(isthmus_error_info* info);
// Reports the ranks that caused the most recent failure, if known: ranks that exited, are stopped or did not respond,
// that made a different call than most others, or that failed alone in a creation, split or allocation. Writes at most
// `capacity` of them to `ranks`. Returns the number of failed ranks, at most 16, or 0 if no rank caused the failure.
// Ranks are numbered as in the communicator that was called: in the parent for a split or a shrink, and in the
// backend's communicator for a subcommunicator that a backend created (isthmus/backend.h). Never fails.
ISTHMUS_API size_t isthmus_last_error_ranks(int* ranks, size_t capacity);

// ---- life cycle -------------------------------------------------------------------------------------

// Options of a new communicator. Zero-initialize the struct and set `struct_bytes = sizeof`, then set the
// members that you need.
typedef struct isthmus_communicator_options {
  size_t struct_bytes;
  isthmus_device device;    // default: platform host, ordinal 0
  const char* config_path;  // TOML file; NULL: search ISTHMUS_CONFIG, ./isthmus.toml, user and system folders
  double timeout_s;         // limit of every wait for other ranks; 0: configured value or 300 s
  // The collectives that will be called: a bit mask of 1u << isthmus_collective, equal on all ranks; 0: any. A
  // backend is created, and uses memory, only if a rule selects it for one of these collectives. Calls of other
  // collectives are rejected. Communicators that are split from this one inherit the mask.
  uint32_t collectives;
  // Limit of every wait during creation, splits and heap allocations; 0: timeout_s. Set it to detect missing
  // ranks early when operations need a long timeout.
  double setup_timeout_s;
  // Backends that the caller runs itself: names separated by commas, equal on all ranks; NULL: none. Isthmus
  // does not create them. isthmus_communicator_path() shows which calls a rule assigns to them. Isthmus returns
  // ISTHMUS_ERROR_UNSUPPORTED for such a call and writes nothing. Communicators that are split from this one
  // inherit the list.
  const char* external_backends;
  // For processes in which each rank has its own thread; equal on all ranks of a process. Nonzero: an operation on
  // devices starts when its peers in this process have made the matching call, and returns when they have started
  // it. Otherwise, such threads can deadlock in the device driver: on CUDA, a copy to pageable memory,
  // cudaHostAlloc and cudaFreeHost hold locks of devices while they wait for kernels. A group starts when the peers
  // of one of its operations have made the call. Communicators that are split from this one inherit the option.
  int starts_together;
} isthmus_communicator_options;

// Starts a rendezvous store in this process and returns its id. The store listens on `address`: "host" or
// "host:port"; NULL: loopback and a free port. One rank calls this function and sends the id to the others
// out of band.
// Lifetime: the store exists until all ranks that connected through it have destroyed their communicators.
ISTHMUS_API isthmus_status isthmus_unique_id_create(const char* address, isthmus_unique_id* id);

// Creates a communicator of `size` ranks that pass the same id. Collective.
// Blocking: waits up to the timeout until all ranks have connected.
// Errors: `*communicator` is NULL on failure.
// Thread safety: if one process has several ranks, call this from a separate thread for each rank,
// or use isthmus_communicator_create_all().
ISTHMUS_API isthmus_status isthmus_communicator_create(const isthmus_unique_id* id, int rank, int size,
                                                       const isthmus_communicator_options* options,
                                                       isthmus_communicator* communicator);

// Creates a communicator through MPI. Collective over the table's MPI communicator, which is duplicated. C++
// programs should call isthmus::mpi::create() of mpi.hpp instead.
// Lifetime: the table must outlive the communicator.
ISTHMUS_API isthmus_status isthmus_communicator_create_mpi(const struct isthmus_mpi_table* mpi,
                                                           const isthmus_communicator_options* options,
                                                           isthmus_communicator* communicator);

// A key-value store of the caller, for example a torch.distributed store. All keys start with "isthmus/".
// Lifetime: the table must outlive the communicators that are created with it.
typedef struct isthmus_store_table {
  size_t struct_bytes;
  void* context;
  // Stores `bytes` bytes under `key`; each key is set once. Returns 0, or any other value on failure.
  int (*set)(void* context, const char* key, const void* value, size_t bytes);
  // Waits at most `timeout_s` for `key` and copies exactly `bytes` bytes. Returns 0 on success, 1 on timeout
  // and 2 on any other failure.
  int (*get)(void* context, const char* key, void* value, size_t bytes, double timeout_s);
  // Like set, but keeps the existing value if the key already has one; all readers then get that value.
  // Required by isthmus_communicator_shrink(); it also decides which of several failures on different nodes
  // counts as the first. NULL, or beyond struct_bytes, if the store has no such operation.
  int (*set_if_absent)(void* context, const char* key, const void* value, size_t bytes);
} isthmus_store_table;

// Creates a communicator through the caller's key-value store. Otherwise like isthmus_communicator_create().
// Several communicators can be created through one store. Its n-th communicator of a size consists of the ranks that
// create their n-th communicator of that size, so all ranks must create them in the same order. A rank that did not
// take part in a failed creation fails in its own next one; create again on all ranks, or use another key prefix.
ISTHMUS_API isthmus_status isthmus_communicator_create_store(const isthmus_store_table* store, int rank,
                                                             int size,
                                                             const isthmus_communicator_options* options,
                                                             isthmus_communicator* communicator);

// Creates all `size` ranks of one communicator in this process, rank i on devices[i]; options->device is
// ignored. Creates all communicators or none. Use them inside groups, or each from its own thread.
ISTHMUS_API isthmus_status isthmus_communicator_create_all(int size, const isthmus_device* devices,
                                                           const isthmus_communicator_options* options,
                                                           isthmus_communicator* communicators);

// The color of a rank that does not join a subcommunicator.
#define ISTHMUS_NO_COLOR (-1)
// Splits a communicator, like MPI_Comm_split. Collective over the parent. Ranks with the same `color` >= 0 form
// a new communicator, ordered by (key, parent rank). A rank with color ISTHMUS_NO_COLOR gets NULL.
// Thread safety: if one process has several ranks, call this from a separate thread for each rank, or
// inside a group.
ISTHMUS_API isthmus_status isthmus_communicator_split(isthmus_communicator parent, int color, int key,
                                                      isthmus_communicator* communicator);

// Creates a communicator of the surviving ranks, like MPI_Comm_shrink (ULFM), after a failure or to remove
// ranks. The survivors keep their order and use the parent's device and options. The parent is aborted: it can
// only be destroyed.
// Membership: collective over the survivors, which agree on the members. A rank whose process has exited is
// excluded immediately. The others have `wait_s` seconds (0: the parent's timeout) to call. Ranks that do not
// call in time or fail during the call are excluded. A late rank gets ISTHMUS_ERROR_REMOTE.
// Errors: to prevent split brain, participants must outnumber the ranks whose state is unknown. A tie goes to
// the side with the lowest rank. Otherwise, the call returns ISTHMUS_ERROR_TIMEOUT. `*communicator` is NULL on
// failure, and the call may be repeated.
// Thread safety: like isthmus_communicator_split().
// To add ranks, create a new communicator of all ranks, including the survivors, from a new unique id.
ISTHMUS_API isthmus_status isthmus_communicator_shrink(isthmus_communicator parent, double wait_s,
                                                       isthmus_communicator* communicator);

// Returns the parent rank of `rank` in the communicator that this one was split or shrunk from; -1 if there
// is no parent.
ISTHMUS_API isthmus_status isthmus_communicator_parent_rank(isthmus_communicator communicator, int rank,
                                                            int* parent_rank);

// Waits for this rank's outstanding operations and releases the communicator. NULL is allowed.
// Blocking: not collective, and does not wait for calls of other ranks. Exception: after calls by the backend
// `p2p` that move data, it gives other ranks one second to receive what this rank has sent.
// Lifetime: the handle is invalid afterward; using it again returns an error.
ISTHMUS_API isthmus_status isthmus_communicator_destroy(isthmus_communicator communicator);

// Aborts the communicator on this rank and on all other ranks that can be reached.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_communicator_abort(isthmus_communicator communicator);
// Aborts the communicator on this rank only, like ncclCommAbort. Peers are not notified. They keep waiting
// for this rank until they are aborted as well or its process exits. Intended for programs that combine
// Isthmus with NCCL.
// Thread safety: any thread.
ISTHMUS_API isthmus_status isthmus_communicator_abort_local(isthmus_communicator communicator);

// Returns ISTHMUS_SUCCESS, or the status of the failure that aborted the communicator,
// including asynchronous failures.
// Blocking: does not wait for operations. The first call that detects a failed operation queries the ranks of
// other nodes for the cause. This takes up to about 5 s.
ISTHMUS_API isthmus_status isthmus_communicator_async_error(isthmus_communicator communicator);

// ---- queries ----------------------------------------------------------------------------------------

ISTHMUS_API isthmus_status isthmus_communicator_rank(isthmus_communicator communicator, int* rank);
ISTHMUS_API isthmus_status isthmus_communicator_size(isthmus_communicator communicator, int* size);
ISTHMUS_API isthmus_status isthmus_communicator_device(isthmus_communicator communicator,
                                                       isthmus_device* device);

// Returns the number of ranks of this communicator in this process; 1 with one rank per process.
ISTHMUS_API isthmus_status isthmus_communicator_local_size(isthmus_communicator communicator, int* local_size);

// Returns the number of nodes that the ranks run on. Ranks on one node can access each other's memory. Set
// ISTHMUS_NODE to divide a machine into several nodes.
ISTHMUS_API isthmus_status isthmus_communicator_nodes(isthmus_communicator communicator, int* nodes);

// ---- operations -------------------------------------------------------------------------------------

// Starts one operation. All of the collectives below call this function.
// Lifetime: `operation` is only read during the call.
ISTHMUS_API isthmus_status isthmus_enqueue(isthmus_communicator communicator,
                                           const isthmus_operation* operation);

// Opens and closes a group. The operations that a thread issues between group_start and group_end start
// at group_end and progress together, on any number of communicators. This is how one thread drives
// several ranks, and how matching sends and receives avoid deadlock. Groups nest; the outermost group_end
// starts the operations.
// Errors: if an operation of the group is invalid, group_end returns its error and starts none of them.
ISTHMUS_API isthmus_status isthmus_group_start(void);
ISTHMUS_API isthmus_status isthmus_group_end(void);

// Buffer shapes are defined by the collective table (collectives.def). `count` is in elements of `datatype`. In
// the comments below, n is the number of ranks, and block r is the elements [r*count, (r+1)*count).

// recv_buf[count] on every rank = send_buf[count] of root. send_buf is only read on root.
ISTHMUS_API isthmus_status isthmus_broadcast(const void* send_buf, void* recv_buf, uint64_t count,
                                             isthmus_datatype datatype, int root,
                                             isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on root = reduction over ranks of send_buf[count].
ISTHMUS_API isthmus_status isthmus_reduce(const void* send_buf, void* recv_buf, uint64_t count,
                                          isthmus_datatype datatype, isthmus_reduction_op op, int root,
                                          isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on every rank = reduction over ranks of send_buf[count], bit-identical everywhere.
ISTHMUS_API isthmus_status isthmus_allreduce(const void* send_buf, void* recv_buf, uint64_t count,
                                             isthmus_datatype datatype, isthmus_reduction_op op,
                                             isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on rank r = reduction over ranks of block r of send_buf[n*count].
ISTHMUS_API isthmus_status isthmus_reduce_scatter(const void* send_buf, void* recv_buf, uint64_t count,
                                                  isthmus_datatype datatype, isthmus_reduction_op op,
                                                  isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on rank r = reduction over ranks of the send_counts[r] elements at send_displs[r] of
// send_buf. `count` is send_counts[own rank]. Both arrays have n entries and are equal on all ranks, for
// example the result of isthmus_partition().
ISTHMUS_API isthmus_status isthmus_reduce_scatterv(const void* send_buf, const uint64_t* send_counts,
                                                   const uint64_t* send_displs, void* recv_buf, uint64_t count,
                                                   isthmus_datatype datatype, isthmus_reduction_op op,
                                                   isthmus_communicator communicator, isthmus_stream stream);
// Block r of recv_buf[n*count] on every rank = send_buf[count] of rank r.
ISTHMUS_API isthmus_status isthmus_allgather(const void* send_buf, void* recv_buf, uint64_t count,
                                             isthmus_datatype datatype, isthmus_communicator communicator,
                                             isthmus_stream stream);
// recv_counts[r] elements at recv_displs[r] of recv_buf = send_buf of rank r. `count` is recv_counts[own rank].
// Both arrays have n entries and are equal on all ranks.
ISTHMUS_API isthmus_status isthmus_allgatherv(const void* send_buf, uint64_t count, void* recv_buf,
                                              const uint64_t* recv_counts, const uint64_t* recv_displs,
                                              isthmus_datatype datatype, isthmus_communicator communicator,
                                              isthmus_stream stream);
// Block r of recv_buf[n*count] on root = send_buf[count] of rank r.
ISTHMUS_API isthmus_status isthmus_gather(const void* send_buf, void* recv_buf, uint64_t count,
                                          isthmus_datatype datatype, int root,
                                          isthmus_communicator communicator, isthmus_stream stream);
// Gather with counts and displacements, which are only read on root.
ISTHMUS_API isthmus_status isthmus_gatherv(const void* send_buf, uint64_t count, void* recv_buf,
                                           const uint64_t* recv_counts, const uint64_t* recv_displs,
                                           isthmus_datatype datatype, int root,
                                           isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on rank r = block r of root's send_buf[n*count].
ISTHMUS_API isthmus_status isthmus_scatter(const void* send_buf, void* recv_buf, uint64_t count,
                                           isthmus_datatype datatype, int root,
                                           isthmus_communicator communicator, isthmus_stream stream);
// Scatter with counts and displacements, which are only read on root.
ISTHMUS_API isthmus_status isthmus_scatterv(const void* send_buf, const uint64_t* send_counts,
                                            const uint64_t* send_displs, void* recv_buf, uint64_t count,
                                            isthmus_datatype datatype, int root,
                                            isthmus_communicator communicator, isthmus_stream stream);
// Block s of recv_buf[n*count] on rank r = block r of send_buf[n*count] of rank s.
ISTHMUS_API isthmus_status isthmus_alltoall(const void* send_buf, void* recv_buf, uint64_t count,
                                            isthmus_datatype datatype, isthmus_communicator communicator,
                                            isthmus_stream stream);
// All-to-all with counts and displacements: recv_counts[s] on rank r must equal send_counts[r] on rank s. In
// place (recv_buf == send_buf), the send arrays must equal the receive arrays.
ISTHMUS_API isthmus_status isthmus_alltoallv(const void* send_buf, const uint64_t* send_counts,
                                             const uint64_t* send_displs, void* recv_buf,
                                             const uint64_t* recv_counts, const uint64_t* recv_displs,
                                             isthmus_datatype datatype, isthmus_communicator communicator,
                                             isthmus_stream stream);
// Point-to-point operations: the peer must issue the matching call with the same count and datatype. Messages
// between two ranks arrive in the order in which they were sent. A send may block until it is received. A rank
// can send a message to itself only inside a group.
ISTHMUS_API isthmus_status isthmus_send(const void* send_buf, uint64_t count, isthmus_datatype datatype,
                                        int peer, isthmus_communicator communicator, isthmus_stream stream);
ISTHMUS_API isthmus_status isthmus_recv(void* recv_buf, uint64_t count, isthmus_datatype datatype, int peer,
                                        isthmus_communicator communicator, isthmus_stream stream);
// Barrier: no call returns (host), and no stream continues (device), before all ranks have entered.
ISTHMUS_API isthmus_status isthmus_barrier(isthmus_communicator communicator, isthmus_stream stream);

#ifdef __cplusplus
}
#endif
#endif
