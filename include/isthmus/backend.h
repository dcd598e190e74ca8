// The contract between the runtime and a backend. A backend wraps one native library or engine; built
// in or loaded from a plug-in (.so) that exports `isthmus_backend_v1`. Vendor headers stay behind it.
//
// Life cycle. create -> (supports | enqueue | poll)* -> destroy, all for one rank of one communicator. `abort`
// comes between create and destroy, at most once, and never during destroy or after it.
//
// Ordering. `enqueue` gets validated operations; on a device platform it must not wait on the host.
//
// Threads. Calls on one state never overlap, except `abort`, which may come at any time from any thread, also
// while another function of the state runs. No function may count on its thread: the calls of one state come
// from whichever threads the program, a group or a split uses. The context's functions may be called from any
// thread until destroy returns; allgather and heap_allocate only where they say so.
//
// Failures. A function that fails calls context->fail first, so that nothing of the story is lost, and
// returns that status. An enqueue that fails before it starts has written nothing; if it fails later
// the runtime poisons the communicator, and `abort` must release every rank that waits in this backend.
//
// Exceptions. No function may throw. The runtime ends what is thrown all the same: as a failure of that
// function (ISTHMUS_ERROR_BACKEND), which poisons the communicator and which all ranks hear of; out of abort,
// destroy, discard_split_state and version it is logged or dropped.
//
// Agreement. What create decides must be the same on all ranks wherever it changes who talks to whom, in which
// order or with what: algorithms, sizes, capabilities of a machine, options. isthmus/plugin.hpp has votes.
#ifndef ISTHMUS_BACKEND_H
#define ISTHMUS_BACKEND_H

#include <isthmus/mpi_table.h>
#include <isthmus/types.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_BACKEND_MAGIC 0x49534d42u  // "ISMB"
#define ISTHMUS_BACKEND_ABI 1u
#define ISTHMUS_BACKEND_SYMBOL "isthmus_backend_v1"

// Growth. Within one ABI the structs below grow at their ends only. The runtime takes an isthmus_backend of any
// struct_bytes from ISTHMUS_BACKEND_MIN_BYTES on: what a shorter one, of an older plug-in, lacks counts as
// NULL; what a longer one, of a newer plug-in, has more is not read. A plug-in compares context->struct_bytes
// with the end of a field that is newer than the oldest runtime it wants to work with, before it uses it. A
// change that is more than growth raises ISTHMUS_BACKEND_ABI; the runtime then takes the ABI before, too.
#define ISTHMUS_BACKEND_MIN_ABI 1u
#define ISTHMUS_BACKEND_MIN_BYTES offsetof(isthmus_backend, group_start)

// On the definition of isthmus_backend_v1: visible where all else is compiled with -fvisibility=hidden.
#if defined(__GNUC__)
#define ISTHMUS_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define ISTHMUS_BACKEND_EXPORT
#endif

// Capabilities: what the runtime may rely on. The ranks of a communicator AND theirs together, so a
// fallback is only ever taken by all ranks at once.
enum {
  // enqueue returns only when the operation is complete on this rank. The runtime then runs the ranks
  // of one process in threads of their own inside a group.
  ISTHMUS_BACKEND_BLOCKING = 1u << 0,
  ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS = 1u << 1,
  ISTHMUS_BACKEND_GRAPH_CAPTURE = 1u << 2,
  ISTHMUS_BACKEND_MULTI_NODE = 1u << 3,
  // Costs every communicator something (connections, say): as long as built-in rules alone name it, it is made
  // only where no backend works but such.
  ISTHMUS_BACKEND_LAST_RESORT = 1u << 4,
  // Every reduction, by every algorithm, is that of all contributions in the order of the ranks, rounded once,
  // at
  // the end, where the datatype has fewer bits than float32 (an algorithm that rounds contributions first says
  // so
  // in its name). `deterministic` leaves floating-point reductions to such backends alone.
  ISTHMUS_BACKEND_RANK_ORDER = 1u << 5,
  // The ranks' devices may be of different platforms, each of which the backend serves.
  ISTHMUS_BACKEND_MIXED_PLATFORMS = 1u << 6
};

// A block of the symmetric heap, as seen by this rank.
typedef struct isthmus_heap_block {
  uint64_t id;  // the same on all ranks
  uint64_t bytes;
  void* const* peers;  // `size` addresses at which this process reaches each rank's copy; NULL: it can't
} isthmus_heap_block;

// What the runtime offers to a backend for one rank. Valid until destroy returns.
typedef struct isthmus_backend_context {
  size_t struct_bytes;  // of the runtime that made it: a field that ends beyond is not there
  void* runtime;        // first argument of the functions below
  int rank, size;
  int node_rank, node_size;  // among the ranks of this machine
  int process_size;          // ranks of this communicator in this process
  const int* node_of;        // size entries: an index of each rank's machine
  const int* process_of;     // size entries: an index of each rank's process
  const int64_t* pid_of;     // size entries: process ids, meaningful on the own machine only
  isthmus_device device;
  double timeout_s;
  const isthmus_mpi_table* mpi;  // NULL without MPI
  isthmus_mpi_comm mpi_comm;     // this communicator's own duplicate; NULL without MPI

  // Collective exchange of `bytes` from each rank, for set-up only (it may be slow). All ranks must call.
  isthmus_status (*allgather)(void* runtime, const void* send_buf, void* recv_buf, size_t bytes);
  // The configured option `backend.<name>.<key>`, or NULL. Valid until destroy.
  const char* (*option)(void* runtime, const char* key);
  // Records a failure (message, hint may be NULL) and returns `status`. Printf format.
  isthmus_status (*fail)(void* runtime, isthmus_status status, int64_t native_code, const char* location,
                         const char* hint, const char* format, ...);
  // Logs once per communicator and text: level 0 debug, 1 info, 2 warning. Printf format.
  void (*log)(void* runtime, int level, const char* format, ...);
  // 1 when the communicator has been poisoned: stop waiting and return ISTHMUS_ERROR_ABORTED.
  int (*is_aborted)(void* runtime);
  // Finds the heap block that holds [pointer, pointer + bytes); 0 when there is none. Cheap.
  int (*heap_find)(void* runtime, const void* pointer, uint64_t bytes, isthmus_heap_block* block,
                   uint64_t* offset);
  // A block of the symmetric heap for the backend itself (scratch, signals): collective over the ranks, in
  // create only. Device memory starts as zeros. It lives until the communicator is destroyed. NULL, like
  // heap_free, in a context without a heap.
  isthmus_status (*heap_allocate)(void* runtime, uint64_t bytes, isthmus_heap_block* block);
  // Releases such a block early. Local: the backend knows that no rank uses it any more.
  isthmus_status (*heap_free)(void* runtime, uint64_t id);
  // What the backend's own `split` returned for this communicator on this rank; NULL also where there was no
  // split. `create` owns it, whatever it returns; only some ranks may have one.
  void* split_state;
  // Calls what the communicator's user wants to get on while it waits (isthmus/interrupt.h). 0 when there is
  // nothing, at the price of a call; else 1: come back soon. Only on a thread that is inside enqueue. NULL in a
  // context of an older runtime.
  int (*progress)(void* runtime);
  // For a backend that is made of the work of others: a communicator of some of these ranks, to call
  // isthmus/isthmus.h on. Collective over the ranks, in create only. Ranks of one color >= 0 form one, in the
  // order of (key, rank); with color ISTHMUS_NO_COLOR, -1, a rank gets NULL. It follows the rules of this
  // communicator but for those that name this backend, and above them `use`, "backend" or "backend:algorithm"
  // (NULL: nothing). Its waits end when this communicator is poisoned; its failures are the backend's to
  // report: their texts have the numbers of the part, isthmus_last_error_ranks has those of this communicator.
  // The backend aborts it in `abort` and destroys it in `destroy`, or before create fails. Fails on all ranks
  // of a part or on none of them; those of other parts go on. NULL in a context of an older runtime.
  isthmus_status (*create_subcommunicator)(void* runtime, int color, int key, const char* preferred_path, isthmus_communicator* subcommunicator);
  // Makes what `fail` recorded last, with this status, the failure of the communicator at once, on all ranks,
  // instead of when the function returns: for an enqueue one of whose threads must release another. `abort`
  // comes out of this call. NULL in a context of an older runtime.
  void (*abort_communicator)(void* runtime, isthmus_status status);
  // create_subcommunicator with the ranks on devices of the backend's choice instead of this communicator's: host, for what
  // it brings to host memory itself. On several nodes rules that name this backend stay. NULL in a context of
  // an older runtime.
  isthmus_status (*create_subcommunicator_on)(void* runtime, isthmus_device device, int color, int key, const char* preferred_path,
                                 isthmus_communicator* subcommunicator);
  // 1 where built-in rules alone name the backend, a last resort: create may be UNSUPPORTED where the backend
  // would work, but gain nothing. Equal on all ranks.
  int is_chosen_by_default;
  // fail, with the `n` ranks that it is due to, as far as the backend knows: that ended, or don't answer. Of
  // more than 16 the first count. A backend that is made of the work of others hands on what
  // isthmus_last_error_ranks says of a part. NULL in a context of an older runtime; fail_with_ranks of
  // isthmus/plugin.hpp then calls fail.
  isthmus_status (*fail_with_ranks)(void* runtime, const int* ranks, size_t n, isthmus_status status,
                            int64_t native_code, const char* location, const char* hint, const char* format,
                            ...);
} isthmus_backend_context;

typedef struct isthmus_backend {
  size_t struct_bytes;
  uint32_t magic;
  uint32_t abi_version;
  const char* name;         // [a-z][a-z0-9_]*, unique
  const char* description;  // one line
  uint32_t capabilities;
  uint32_t platforms;  // bit mask of 1u << isthmus_platform

  // Collective over the ranks. Leaves *state NULL and returns ISTHMUS_ERROR_UNSUPPORTED, with a reason
  // through context->fail, where this machine can't: the communicator then goes on without the backend
  // on all ranks. Any other failure fails the communicator's creation. Every context->allgather must be
  // matched on all ranks, also on the ranks that can't.
  isthmus_status (*create)(const isthmus_backend_context* context, void** state);
  void (*destroy)(void* state);

  // NULL when this backend can do the operation with that algorithm (NULL: any), else a reason in static
  // storage. Depends only on what is equal on all ranks (not on pointers, nor on v-counts of one rank).
  const char* (*supports)(void* state, const isthmus_operation* operation, const char* algorithm);

  // The names that a rule may put behind "backend:"; NULL-terminated; may be NULL. Static storage. The runtime
  // finds a rule's name in this array once and from then on hands the array's own pointer to supports and
  // enqueue: isthmus_algorithm_index turns it into an index without looking at the text.
  const char* const* algorithms;

  // Starts `n` operations (blocking backends: and completes them). More than one come from a group and
  // must progress together; the collectives among them keep their order. algorithms[i] may be NULL.
  isthmus_status (*enqueue)(void* state, const isthmus_operation* operations, const char* const* algorithms,
                            size_t n);

  // Brackets the enqueues of one group over several states of this backend in one process; both may be
  // NULL. group_end starts what enqueue collected.
  isthmus_status (*group_start)(void);
  isthmus_status (*group_end)(void);

  // ISTHMUS_SUCCESS or a failure that came after enqueue returned. Does not wait. May be NULL.
  isthmus_status (*poll)(void* state);
  // Releases whatever waits, here and on other ranks as far as possible. May be NULL.
  void (*abort)(void* state);
  // Waits until everything enqueued is complete, at most the timeout. NULL for blocking backends.
  isthmus_status (*synchronize)(void* state);
  // "library version" for info; may be NULL. Static or state storage.
  const char* (*version)(void* state);

  // A communicator is being split: makes what `create` of the part can be made out of (its context's `part`),
  // or NULL. Collective over all ranks of `state`, also those with color < 0, which get NULL. Bounded by the
  // timeout. discard_split_state releases what no create was given. Both may be NULL.
  void* (*split)(void* state, int color, int key);
  void (*discard_split_state)(void* split_state);

  // The program has allocated a block of the symmetric heap (collective, in the same order on all ranks, may
  // use context->allgather): the backend may register it. It cannot fail; a backend that cannot register
  // says so through context->log. Blocks that backends allocate for themselves are not announced.
  void (*register_block)(void* state, const isthmus_heap_block* block);
  // The block is about to be released. Local: other ranks may keep theirs. Not called for blocks that live
  // until destroy. Both may be NULL.
  void (*unregister_block)(void* state, const isthmus_heap_block* block);

  // What the backend would make of an operation that it supports, for explain: text in JSON, or NULL. Buffers
  // and the counts that only some ranks know are not set. The text is the state's, until the next call. May be
  // NULL.
  const char* (*plan)(void* state, const isthmus_operation* operation, const char* algorithm);
} isthmus_backend;

// The index in `algorithms` of what supports or enqueue was given. Found by identity where it is one of the
// array's own pointers, as the runtime promises; else by text, for a caller that brings its own. -1: NULL, or
// no such name.
__attribute__((unused)) static inline int isthmus_algorithm_index(const char* const* algorithms,
                                                                  const char* algorithm) {
  int index;
  if (!algorithms || !algorithm) return -1;
  for (index = 0; algorithms[index]; ++index)
    if (algorithms[index] == algorithm) return index;
  for (index = 0; algorithms[index]; ++index)
    if (strcmp(algorithms[index], algorithm) == 0) return index;
  return -1;
}

// What a plug-in exports. The pointer has static storage, and so has what it leads to.
ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1(void);

#ifdef __cplusplus
}
#endif
#endif
