// Isthmus: collectives for accelerators and hosts behind one C ABI. No SYCL, MPI or vendor header.
//
// Errors. Every function returns an isthmus_status; on failure isthmus_last_error gives the details of
// the calling thread's latest one. A call that fails validation has written nothing. A failure after an
// operation began poisons the communicator: later calls return ISTHMUS_ERROR_ABORTED until it is
// destroyed, on every rank, and no rank waits longer than the communicator's timeout.
//
// Ordering. On a device platform an operation is ordered by its stream: it starts after earlier work of
// the stream, later work of the stream sees its result, and the host does not wait. On the host
// platform a call returns when this rank's part is complete and its buffers may be reused. All ranks
// call the collectives of one communicator in the same order. Who calls them on several streams makes each
// wait for the one before, by an event: calls of one communicator share its signals and staging.
//
// Threads. Functions on different communicators may run concurrently. Calls on one communicator must
// not overlap, except isthmus_communicator_abort and its local form, which any thread may call at any time.
// Queries of names, sizes and the last error are safe anywhere.
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

struct isthmus_mpi_table;    // mpi_table.h; filled by mpi.hpp from the user's own mpi.h
struct isthmus_store_table;  // bootstrap through a key-value store of the caller's, below

// ---- names and errors -------------------------------------------------------------------------------

// "major.minor.patch"; static storage.
ISTHMUS_API const char* isthmus_version(void);

// The spelling of a value in THE TABLE, the same in C, Python, config and logs; NULL when out of range.
ISTHMUS_API const char* isthmus_collective_name(isthmus_collective collective);
ISTHMUS_API const char* isthmus_datatype_name(isthmus_datatype datatype);
ISTHMUS_API const char* isthmus_reduction_op_name(isthmus_reduction_op op);
ISTHMUS_API const char* isthmus_platform_name(isthmus_platform platform);
ISTHMUS_API const char* isthmus_status_name(isthmus_status status);
// Bytes of one element; 0 when out of range.
ISTHMUS_API size_t isthmus_datatype_bytes(isthmus_datatype datatype);

// Details of the calling thread's latest failure. Never fails; status is ISTHMUS_SUCCESS if none.
ISTHMUS_API void isthmus_last_error(isthmus_error_info* info);
// The ranks that this failure is due to, as far as this rank knows: that ended, are stopped, or did not answer.
// `ranks` gets the first `capacity` of them. Returns how many they are, 16 at most; 0 also where it is due to
// no rank. They are ranks of the communicator that was called: of a split or a shrink that fails the parent's.
// Those of a part that a backend made (isthmus/backend.h) are numbers of the whole. Never fails.
ISTHMUS_API size_t isthmus_last_error_ranks(int* ranks, size_t capacity);

// ---- life cycle -------------------------------------------------------------------------------------

// Options of a new communicator. Zero-initialise, set `struct_bytes = sizeof`, then what you need.
typedef struct isthmus_communicator_options {
  size_t struct_bytes;
  isthmus_device device;    // default: platform host, ordinal 0
  const char* config_path;  // TOML file; NULL: ISTHMUS_CONFIG, ./isthmus.toml, user and system folders
  double timeout_s;         // bound on every wait for other ranks; 0: config or 300 s
  // What will be called, a bit mask of 1u << isthmus_collective, equal on all ranks; 0: anything. Backends that
  // no rule gives any of it are not made, so they cost no memory; other calls are refused. Parts of a split
  // have it, too.
  uint32_t collectives;
  // Bound on every wait of creation, splits and heap blocks; 0: timeout_s. For ranks that may never come, of a
  // communicator whose calls may wait for long.
  double setup_timeout_s;
  // Names of backends, separated by commas, equal on all ranks, that the caller carries out itself: they are
  // not made, and a call that a rule gives to one is refused with ISTHMUS_ERROR_UNSUPPORTED, nothing written,
  // where isthmus_communicator_path names it. NULL: none. Parts of a split have it, too.
  const char* external_backends;
} isthmus_communicator_options;

// Starts a store in this process that listens on `address` ("host" or "host:port"; NULL: loopback, free
// port) and writes its id. One rank calls this and gives the id to the others by any means it has. The
// store lives until all ranks that met through it have destroyed their communicators.
ISTHMUS_API isthmus_status isthmus_unique_id_create(const char* address, isthmus_unique_id* id);

// Collective over `size` ranks with the same id; blocks until all have met, at most the timeout.
// `*communicator` is NULL on failure. The calls of several ranks of one process must run in threads of
// their own; isthmus_communicator_create_all does that for you.
ISTHMUS_API isthmus_status isthmus_communicator_create(const isthmus_unique_id* id, int rank, int size,
                                                       const isthmus_communicator_options* options,
                                                       isthmus_communicator* communicator);

// The same through MPI: collective over the table's communicator, which is duplicated. C++ programs
// call isthmus::mpi::create of mpi.hpp instead. The table must outlive the communicator.
ISTHMUS_API isthmus_status isthmus_communicator_create_mpi(const struct isthmus_mpi_table* mpi,
                                                           const isthmus_communicator_options* options,
                                                           isthmus_communicator* communicator);

// The same through the caller's key-value store (a torch.distributed store, for example). Keys start
// with "isthmus/"; the table must outlive the communicator.
typedef struct isthmus_store_table {
  size_t struct_bytes;
  void* context;
  // Publish `bytes` bytes under `key`; a key is set once. Returns 0, or any other value on failure.
  int (*set)(void* context, const char* key, const void* value, size_t bytes);
  // Wait at most `timeout_s` for `key` and copy exactly `bytes` bytes. Returns 0, 1 on timeout, 2 else.
  int (*get)(void* context, const char* key, void* value, size_t bytes, double timeout_s);
  // The same as set, unless the key has a value: the first one stays, for all who ask. Needed by shrink; of
  // failures on several nodes the first is kept by it. NULL, or beyond struct_bytes, where the store has no
  // such operation.
  int (*set_if_absent)(void* context, const char* key, const void* value, size_t bytes);
} isthmus_store_table;
ISTHMUS_API isthmus_status isthmus_communicator_create_store(const isthmus_store_table* store, int rank,
                                                             int size,
                                                             const isthmus_communicator_options* options,
                                                             isthmus_communicator* communicator);

// All `size` ranks of one communicator in this process, rank i on devices[i] (options->device is
// ignored). Use them inside groups, or from a thread each. All or none are created.
ISTHMUS_API isthmus_status isthmus_communicator_create_all(int size, const isthmus_device* devices,
                                                           const isthmus_communicator_options* options,
                                                           isthmus_communicator* communicators);

// The color of a rank that joins no part.
#define ISTHMUS_NO_COLOR (-1)
// Collective. Ranks with the same `color` >= 0 form a new communicator, ordered by (key, old rank);
// color ISTHMUS_NO_COLOR gets NULL. Several ranks of one process call this from a thread each, or inside a
// group.
ISTHMUS_API isthmus_status isthmus_communicator_split(isthmus_communicator parent, int color, int key,
                                                      isthmus_communicator* communicator);

// After a failure, or instead of ranks that are to leave: the ranks that still call this form a new
// communicator, in their old order, with the parent's device and options. The parent is poisoned; it can only
// be destroyed. Collective over the survivors, who agree on who they are: ranks whose process has ended count
// as lost at once, others that do not call are waited for `wait_s` (0: the parent's timeout) and left out. A
// rank that is lost on the way is left out, too. Who comes later gets ISTHMUS_ERROR_REMOTE. So that two parts
// never go on at once, those who came must be more than those of whose end nobody knows, or as many with the
// lowest rank among them; else ISTHMUS_ERROR_TIMEOUT. *communicator is NULL on failure; it may be called again.
// Several ranks of one process: like split. New ranks join by isthmus_communicator_create, survivors and all,
// with an id of a survivor's.
ISTHMUS_API isthmus_status isthmus_communicator_shrink(isthmus_communicator parent, double wait_s,
                                                       isthmus_communicator* communicator);

// The number that `rank` of this communicator had in the one that it was split or shrunk from; -1: in none.
ISTHMUS_API isthmus_status isthmus_communicator_parent_rank(isthmus_communicator communicator, int rank,
                                                            int* parent_rank);

// Waits for this rank's outstanding operations and releases everything; NULL is allowed. Not collective: it
// waits for no other rank's call, except that after a broadcast by `p2p` other ranks have a second to begin it.
// The handle is dead afterwards; using it again is reported.
ISTHMUS_API isthmus_status isthmus_communicator_destroy(isthmus_communicator communicator);

// Poisons the communicator on this rank and, as far as they can be reached, on the others. Any thread.
ISTHMUS_API isthmus_status isthmus_communicator_abort(isthmus_communicator communicator);
// The same on this rank alone. Nobody is told: the others wait for this rank until they are aborted, too, or it
// ends. For who stands beside a library whose own abort is like that, as NCCL's. Any thread.
ISTHMUS_API isthmus_status isthmus_communicator_abort_local(isthmus_communicator communicator);

// ISTHMUS_SUCCESS, or the failure that poisoned the communicator, asynchronous ones included. Does not wait for
// operations; the call that is the first to see one fail asks ranks of other nodes for the cause, some 5 s at
// most.
ISTHMUS_API isthmus_status isthmus_communicator_async_error(isthmus_communicator communicator);

// ---- queries ----------------------------------------------------------------------------------------

ISTHMUS_API isthmus_status isthmus_communicator_rank(isthmus_communicator communicator, int* rank);
ISTHMUS_API isthmus_status isthmus_communicator_size(isthmus_communicator communicator, int* size);
ISTHMUS_API isthmus_status isthmus_communicator_device(isthmus_communicator communicator,
                                                       isthmus_device* device);

// Ranks of this communicator that live in this process (1 for MPI style).
ISTHMUS_API isthmus_status isthmus_communicator_local_size(isthmus_communicator communicator, int* local_size);

// Nodes that its ranks are on: within one they reach each other's memory (ISTHMUS_NODE divides a machine).
ISTHMUS_API isthmus_status isthmus_communicator_nodes(isthmus_communicator communicator, int* nodes);

// JSON about the communicator: ranks, nodes, device, bootstrap, backends with version, state and the
// reason of every one that is not available, rules with their sources. Writes at most `capacity` bytes
// with the NUL; `*needed` (may be NULL) gets the whole length with the NUL, so call twice.
ISTHMUS_API isthmus_status isthmus_communicator_info(isthmus_communicator communicator, char* json,
                                                     size_t capacity, size_t* required_bytes);

// JSON that says which backend, algorithm and rule this operation would take and why every other rule
// did not. Buffers may be NULL. It runs the selector that a real call runs, so it is never a guess.
ISTHMUS_API isthmus_status isthmus_communicator_explain(isthmus_communicator communicator,
                                                        const isthmus_operation* operation, char* json,
                                                        size_t capacity, size_t* required_bytes);

// The path of explain alone: "backend:algorithm" or "backend", "" where no backend can do the call. A few
// microseconds, for callers that remember the answer. Cut to `capacity` bytes with the NUL. It is the same on
// all ranks; buffers may be NULL.
ISTHMUS_API isthmus_status isthmus_communicator_path(isthmus_communicator communicator,
                                                     const isthmus_operation* operation, char* path,
                                                     size_t capacity);

// The platform that the configuration's [sycl_backends] map gives to a sycl::backend value, looked up by
// name ("ext_oneapi_cuda"; may be NULL) and by number. *found is 0 when the map has neither. For the SYCL
// front end, before there is a communicator. Reads the configuration: not for the call path.
ISTHMUS_API isthmus_status isthmus_sycl_backend_platform(const char* config_path, const char* name, int number,
                                                         isthmus_platform* platform, int* found);

// JSON about the jobs of this user on this machine, out of their ranks' flight recorders: for each communicator
// one sentence that says which rank keeps the others waiting, and since when (docs/flight_recorder.md). Jobs of
// the process `pid` (0: of all), whose name begins with `job` (NULL: of any name); ranks that have died are
// told of, too. `json`, `capacity` and `needed` as above; what is told changes from call to call, so give it
// some room. Needs no communicator and waits for nothing. Any thread.
ISTHMUS_API isthmus_status isthmus_diagnose(int64_t pid, const char* job, char* json, size_t capacity,
                                            size_t* required_bytes);

// Merges the traces that the ranks of a job left in `folder` (ISTHMUS_TRACE, docs/trace.md): clocks aligned,
// calls of a communicator matched by number. Writes the timeline in Chrome's trace event format to `path`, a
// new file (NULL: none), and a summary as JSON, with `json`, `capacity` and `needed` as above: of each
// communicator who came last to how many calls and how long the others waited for it in us, how it ended, which
// files were left out and why. Times are of the calls on the host. Of jobs that have died, too; of one that
// runs what it has written so far. Errors: ISTHMUS_ERROR_INVALID_ARGUMENT where nothing can be read, or `path`
// is there or can't be written. Needs no communicator. Any thread; it reads all files into memory (some 200
// bytes a call).
ISTHMUS_API isthmus_status isthmus_trace_merge(const char* folder, const char* path, char* json,
                                               size_t capacity, size_t* required_bytes);

// ---- operations -------------------------------------------------------------------------------------

// The one entry that all named collectives below go through. `operation` is read during the call only.
ISTHMUS_API isthmus_status isthmus_enqueue(isthmus_communicator communicator,
                                           const isthmus_operation* operation);

// Operations between group_start and group_end of one thread start at group_end and progress together,
// whatever communicators they are on: that is how one thread drives several ranks, and how send and
// recv are paired without deadlock. Groups nest; the outermost end starts the work. If any operation of
// the group is invalid, group_end returns its error and none starts.
ISTHMUS_API isthmus_status isthmus_group_start(void);
ISTHMUS_API isthmus_status isthmus_group_end(void);

// Shapes: see THE TABLE (collectives.def). `count` is in elements of `datatype`. In the comments, n is
// the number of ranks and block r is elements [r*count, (r+1)*count).

// recv_buf[count] on every rank = send_buf[count] of root. send_buf is read on root only.
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
// send_buf; count is send_counts[own rank]. Both arrays have n entries and are equal on all ranks: shares by
// speed, say (isthmus_partition).
ISTHMUS_API isthmus_status isthmus_reduce_scatterv(const void* send_buf, const uint64_t* send_counts,
                                                   const uint64_t* send_displs, void* recv_buf, uint64_t count,
                                                   isthmus_datatype datatype, isthmus_reduction_op op,
                                                   isthmus_communicator communicator, isthmus_stream stream);
// Block r of recv_buf[n*count] on every rank = send_buf[count] of rank r.
ISTHMUS_API isthmus_status isthmus_allgather(const void* send_buf, void* recv_buf, uint64_t count,
                                             isthmus_datatype datatype, isthmus_communicator communicator,
                                             isthmus_stream stream);
// recv_counts[r] elements at recv_displs[r] of recv_buf = send_buf of rank r; count is
// recv_counts[own rank]. Both arrays have n entries and are equal on all ranks.
ISTHMUS_API isthmus_status isthmus_allgatherv(const void* send_buf, uint64_t count, void* recv_buf,
                                              const uint64_t* recv_counts, const uint64_t* recv_displs,
                                              isthmus_datatype datatype, isthmus_communicator communicator,
                                              isthmus_stream stream);
// Block r of recv_buf[n*count] on root = send_buf[count] of rank r.
ISTHMUS_API isthmus_status isthmus_gather(const void* send_buf, void* recv_buf, uint64_t count,
                                          isthmus_datatype datatype, int root,
                                          isthmus_communicator communicator, isthmus_stream stream);
// The same with counts and displacements, which are read on root only.
ISTHMUS_API isthmus_status isthmus_gatherv(const void* send_buf, uint64_t count, void* recv_buf,
                                           const uint64_t* recv_counts, const uint64_t* recv_displs,
                                           isthmus_datatype datatype, int root,
                                           isthmus_communicator communicator, isthmus_stream stream);
// recv_buf[count] on rank r = block r of root's send_buf[n*count].
ISTHMUS_API isthmus_status isthmus_scatter(const void* send_buf, void* recv_buf, uint64_t count,
                                           isthmus_datatype datatype, int root,
                                           isthmus_communicator communicator, isthmus_stream stream);
// The same with counts and displacements, which are read on root only.
ISTHMUS_API isthmus_status isthmus_scatterv(const void* send_buf, const uint64_t* send_counts,
                                            const uint64_t* send_displs, void* recv_buf, uint64_t count,
                                            isthmus_datatype datatype, int root,
                                            isthmus_communicator communicator, isthmus_stream stream);
// Block s of recv_buf[n*count] on rank r = block r of send_buf[n*count] of rank s.
ISTHMUS_API isthmus_status isthmus_alltoall(const void* send_buf, void* recv_buf, uint64_t count,
                                            isthmus_datatype datatype, isthmus_communicator communicator,
                                            isthmus_stream stream);
// The same with counts and displacements: recv_counts[s] here equals send_counts[r] on rank s. In place
// (recv_buf == send_buf) the send arrays must equal the receive arrays.
ISTHMUS_API isthmus_status isthmus_alltoallv(const void* send_buf, const uint64_t* send_counts,
                                             const uint64_t* send_displs, void* recv_buf,
                                             const uint64_t* recv_counts, const uint64_t* recv_displs,
                                             isthmus_datatype datatype, isthmus_communicator communicator,
                                             isthmus_stream stream);
// Point to point: the peer calls the other with the same count and datatype. Messages between two ranks
// arrive in the order sent. A send may block until it is received. peer == own rank needs a group.
ISTHMUS_API isthmus_status isthmus_send(const void* send_buf, uint64_t count, isthmus_datatype datatype,
                                        int peer, isthmus_communicator communicator, isthmus_stream stream);
ISTHMUS_API isthmus_status isthmus_recv(void* recv_buf, uint64_t count, isthmus_datatype datatype, int peer,
                                        isthmus_communicator communicator, isthmus_stream stream);
// No rank leaves (host) or lets its stream pass (device) before every rank has entered.
ISTHMUS_API isthmus_status isthmus_barrier(isthmus_communicator communicator, isthmus_stream stream);

// Whether the stream of this device is being captured into a graph: what it is given now runs when the graph is
// launched, and must not wait for events that were recorded outside of that capture. NULL streams and the
// host's never are. Any thread.
ISTHMUS_API isthmus_status isthmus_stream_is_capturing(isthmus_device device, isthmus_stream stream,
                                                       int* capturing);

// inout_buf[i] = in_buf[i] (op) inout_buf[i] on host memory, with the arithmetic of THE TABLE; avg adds
// (the caller divides). This is the reduction that the host and mpi backends use. Any thread.
ISTHMUS_API isthmus_status isthmus_reduce_local(const void* in_buf, void* inout_buf, uint64_t count,
                                                isthmus_datatype datatype, isthmus_reduction_op op);

// Shares by speed: counts[i] of `count` elements for rank i of n, in proportion to speeds[i] (any unit,
// measured: elements per second, say), and where they begin: displs[i], side by side. What reduce_scatterv,
// allgatherv and scatterv take. The sum is `count` exactly. Shares are whole granules of `granularity` elements
// (1: any count), what is left goes to the largest remainders, the lower rank first; the last share that is not
// empty also has what does not fill a granule. A speed of 0 gets nothing. Ranks that give the same speeds get
// the same shares: exchange measured ones first (allgather). INVALID_ARGUMENT, with nothing written: n or
// granularity 0, a speed that is negative, infinite or no number, all of them 0. Any thread.
ISTHMUS_API isthmus_status isthmus_partition(const double* speeds, int n, uint64_t count, uint64_t granularity,
                                             uint64_t* counts, uint64_t* displs);

#ifdef __cplusplus
}
#endif
#endif
