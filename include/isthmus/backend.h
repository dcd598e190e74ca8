// The contract between the Isthmus runtime and a backend. A backend wraps one native library or engine. It
// is either built in or loaded from a plug-in (.so) that exports `isthmus_backend_v1`. Only the backend
// includes vendor headers.
//
// Life cycle:
//   The runtime calls create, then supports, enqueue and poll any number of times, then destroy, for one rank
//   of one communicator. `abort` is called at most once, after create and never during or after destroy.
//
// Blocking:
//   `enqueue` receives validated operations. On a device platform, it must not wait on the host.
//
// Thread safety:
//   Calls on one state never overlap. Exception: `abort` may be called at any time from any thread, even while
//   another function of the state runs. Calls on one state can come from different threads of the program, of a
//   group or of a split, so a function must not depend on the calling thread. The functions of the context may
//   be called from any thread until destroy returns. allgather and heap_allocate may only be called where their
//   comments allow it.
//
// Errors:
//   A function that fails first calls context->fail, which records the details, and then returns the same
//   status. An enqueue that fails before it starts writes nothing. If it fails later, the runtime aborts the
//   communicator, and `abort` must release every rank that waits in this backend.
//
// Exceptions:
//   No function may throw. The runtime still catches exceptions. It reports them as failures of the function
//   (ISTHMUS_ERROR_BACKEND), which abort the communicator on all ranks. Exceptions from abort, destroy,
//   discard_split_state or version are logged or ignored.
//
// Agreement:
//   A decision of create must be the same on all ranks if it affects which ranks communicate, in which order,
//   or how. Examples are algorithms, sizes, machine capabilities and options. isthmus/plugin.hpp provides
//   votes for this.
#ifndef ISTHMUS_BACKEND_H
#define ISTHMUS_BACKEND_H

#include <isthmus/mpi_table.h>
#include <isthmus/types.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_BACKEND_MAGIC 0x49534d42u  // "ISMB"
// Every change of the structs below raises ISTHMUS_BACKEND_ABI. The runtime loads a plug-in only if the abi_version
// and the struct_bytes of its isthmus_backend are equal to its own.
#define ISTHMUS_BACKEND_ABI 7u
#define ISTHMUS_BACKEND_SYMBOL \
  "isthmus_backend_v1"  // the same in every ABI, so that old plug-ins are recognized

// The algorithm of an operation if no rule names one: the backend chooses.
#define ISTHMUS_ANY_ALGORITHM (-1)

// End of the name of an algorithm that rounds float32 contributions to bfloat16. ISTHMUS_ANY_ALGORITHM must not round.
#define ISTHMUS_ROUNDED_SUFFIX "_bf16"

// Exports the definition of isthmus_backend_v1 from code that is compiled with -fvisibility=hidden.
#if defined(__GNUC__)
#define ISTHMUS_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define ISTHMUS_BACKEND_EXPORT
#endif

// Capabilities of a backend. The runtime combines the capabilities of all ranks with AND, so that all ranks use
// the same fallback.
enum {
  // enqueue returns after the operation is complete on this rank. Inside a group, the runtime runs each rank of
  // a process in its own thread for such a backend.
  ISTHMUS_BACKEND_BLOCKING = 1u << 0,
  ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS = 1u << 1,
  ISTHMUS_BACKEND_GRAPH_CAPTURE = 1u << 2,
  ISTHMUS_BACKEND_MULTI_NODE = 1u << 3,
  // The backend uses resources, for example connections, in every communicator. If only built-in rules name it,
  // it is created only if no other backend works. With `deterministic`, a backend with ISTHMUS_BACKEND_RANK_ORDER is also
  // created if the others lack that.
  ISTHMUS_BACKEND_LAST_RESORT = 1u << 4,
  // Every algorithm combines all contributions to an element in rank order, starting with rank 0, in the accumulation
  // type (float32 for datatypes with fewer bits), and rounds once, at the end. If an algorithm rounds the contributions
  // first, its name must end in ISTHMUS_ROUNDED_SUFFIX. With `deterministic`, only such backends, without such
  // algorithms, run floating-point reductions (exception: ISTHMUS_BACKEND_ROUNDS_ONCE).
  ISTHMUS_BACKEND_RANK_ORDER = 1u << 5,
  // The devices of the ranks may belong to different platforms if the backend supports each platform.
  ISTHMUS_BACKEND_MIXED_PLATFORMS = 1u << 6,
  // As BLOCKING, but only on the platform `host`. On devices, enqueue is ordered by the stream.
  ISTHMUS_BACKEND_BLOCKING_ON_HOST = 1u << 7,
  // The backend supports every operation of a communicator for which its create succeeds. If a built-in rule selects
  // it, backends that only built-in rules name are not created.
  ISTHMUS_BACKEND_EVERY_OPERATION = 1u << 8,
  // The backend runs an allreduce whose `rmsnorm` is set, on the platforms of its devices. The other backends never get
  // one. `supports` may only test whether `rmsnorm` is NULL.
  ISTHMUS_BACKEND_RMSNORM = 1u << 9,
  // A send does not wait for its receiver if at most one earlier message to it has not been received, and if no user
  // rule selects the backend for longer messages than the built-in rules do. The runtime orders the messages of a group
  // that use several backends accordingly.
  ISTHMUS_BACKEND_BUFFERED_SENDS = 1u << 10,
  // The sum or product of two contributions of float16, bfloat16, float32 or float64 has the bits of the exact result that
  // is rounded once, to nearest even, subnormal numbers included, whatever the algorithm. Two contributions have only one order, so `deterministic` accepts these reductions between two ranks.
  ISTHMUS_BACKEND_ROUNDS_ONCE = 1u << 11,
  // The backend runs an allreduce whose `product` is set. The other backends never get one. `supports` may only test
  // whether `product` is NULL.
  ISTHMUS_BACKEND_PRODUCT = 1u << 12
};

// A block of the symmetric heap in the address space of this rank.
typedef struct isthmus_heap_block {
  uint64_t id;  // equal on all ranks
  uint64_t bytes;
  void* const* peers;  // `size` addresses of the ranks' blocks in this process; NULL: not reachable
} isthmus_heap_block;

// The runtime's services for a backend on one rank.
// Lifetime: valid until destroy returns.
typedef struct isthmus_backend_context {
  size_t struct_bytes;  // size in the runtime
  void* runtime;        // first argument of the functions below
  int rank, size;
  int node_rank, node_size;  // among the ranks of this node
  int process_size;          // ranks of this communicator in this process
  const int* node_of;        // size entries: node index of each rank
  const int* process_of;     // size entries: process index of each rank
  const int64_t* pid_of;     // size entries: process ids, only meaningful on this machine
  isthmus_device device;
  double timeout_s;
  const isthmus_mpi_table* mpi;  // NULL without MPI
  isthmus_mpi_comm mpi_comm;     // a duplicate for this communicator; NULL without MPI

  // Gathers `bytes` bytes from each rank. Collective; only for setup, because it may be slow.
  isthmus_status (*allgather)(void* runtime, const void* send_buf, void* recv_buf, size_t bytes);
  // Returns the configured option `backend.<name>.<key>`, or NULL. Valid until destroy.
  const char* (*option)(void* runtime, const char* key);
  // Records a failure and returns `status`. `hint` may be NULL. `format` is a printf format.
  isthmus_status (*fail)(void* runtime, isthmus_status status, int64_t native_code, const char* location,
                         const char* hint, const char* format, ...);
  // Logs a message once per communicator. Levels: 0 debug, 1 info, 2 warning. `format` is a printf format.
  void (*log)(void* runtime, int level, const char* format, ...);
  // Returns 1 if the communicator has been aborted. The backend must then stop waiting
  // and return ISTHMUS_ERROR_ABORTED.
  int (*is_aborted)(void* runtime);
  // Finds the heap block that contains [pointer, pointer + bytes). Returns 0 if there is none. The
  // call is cheap.
  int (*heap_find)(void* runtime, const void* pointer, uint64_t bytes, isthmus_heap_block* block,
                   uint64_t* offset);
  // Allocates a block of the symmetric heap for the backend itself, for example for staging.
  // Collective; may only be called in create. Device memory is zero-initialized. The block lives until the
  // communicator is destroyed. heap_allocate and heap_free are NULL in a context without a heap.
  isthmus_status (*heap_allocate)(void* runtime, uint64_t bytes, isthmus_heap_block* block);
  // Releases such a block early. Not collective: the backend must ensure that no rank uses the block.
  isthmus_status (*heap_free)(void* runtime, uint64_t id);
  // The result of the backend's `split` for this communicator on this rank, or NULL if there was no split.
  // `create` takes ownership even if it fails. The state can be NULL on some ranks and not on others.
  void* split_state;
  // Calls the progress callback of the communicator (isthmus/interrupt.h). Returns 0 if there is none, at the
  // cost of one function call. Otherwise returns 1, and the backend must call it again soon. May only be called
  // on a thread inside enqueue.
  int (*progress)(void* runtime);
  // Creates a communicator of some of these ranks. Composite backends use it through isthmus/isthmus.h.
  // `device`: of this rank in the subcommunicator. A backend that copies data to host memory itself uses the host.
  // Collective over the ranks; may only be called in create.
  // Membership: ranks with the same color >= 0 form a communicator, ordered by (key, rank). Ranks with color
  // ISTHMUS_NO_COLOR (-1) get NULL.
  // Selection: the subcommunicator uses the rules of this communicator, except those that name this backend.
  // These stay in effect on several nodes if `device` is of another platform or the ranks' platforms differ.
  // `preferred_path` ("backend" or "backend:algorithm"; NULL: none) takes precedence over the rules.
  // Lifetime: aborting this communicator ends all waits in the subcommunicator. The backend must abort the
  // subcommunicator in `abort`, and destroy it in `destroy` or before create fails.
  // Errors: the call fails on all ranks of a subcommunicator or on none; other subcommunicators are not
  // affected. If a call on the subcommunicator fails later, the backend must report that failure on this communicator
  // (fail, and the status of enqueue or poll). The message then contains ranks of the subcommunicator, but
  // isthmus_last_error_ranks() returns ranks of this communicator.
  isthmus_status (*create_subcommunicator)(void* runtime, isthmus_device device, int color, int key,
                                           const char* preferred_path, isthmus_communicator* subcommunicator);
  // Aborts this communicator on all ranks immediately, instead of when the function returns. The failure is the
  // last one that `fail` recorded with this status. Needed if one thread inside enqueue must release another.
  // The runtime calls `abort` before this function returns.
  void (*abort_communicator)(void* runtime, isthmus_status status);
  // 1 if only built-in rules name the backend. create may then return UNSUPPORTED if the backend would work but
  // has no benefit. The value is equal on all ranks.
  int is_chosen_by_default;
  // isthmus_communicator_options.collectives: the backend gets no other collectives. 0: any.
  uint32_t collectives;
  // Like fail, but also records the ranks that caused the failure: exited or unresponsive (the first 16 only).
  // A composite backend passes the result of isthmus_last_error_ranks() for a subcommunicator.
  isthmus_status (*fail_with_ranks)(void* runtime, const int* ranks, size_t n, isthmus_status status,
                                    int64_t native_code, const char* location, const char* hint,
                                    const char* format, ...);
  // Publishes the rank that this one waits for; -1: none. `isthmus doctor` and the failures of other ranks use it
  // to find the rank that blocks all others. Call it only if a wait is long. After a failure, leave it set.
  void (*set_awaited_rank)(void* runtime, int rank);
} isthmus_backend_context;

// The functions and properties of a backend.
typedef struct isthmus_backend {
  size_t struct_bytes;
  uint32_t magic;
  uint32_t abi_version;
  const char* name;         // [a-z][a-z0-9_]*, unique
  const char* description;  // one line
  uint32_t capabilities;
  uint32_t platforms;  // bit mask of 1u << isthmus_platform

  // Creates the state of one rank. Collective over the ranks.
  // Errors: if this machine cannot run the backend, create leaves *state NULL, reports the reason through
  // context->fail and returns ISTHMUS_ERROR_UNSUPPORTED. The communicator then works without the backend on all
  // ranks. After any other error, the creation of the communicator fails. All ranks must make the same calls of
  // context->allgather, including ranks that cannot run the backend.
  isthmus_status (*create)(const isthmus_backend_context* context, void** state);
  void (*destroy)(void* state);

  // Returns NULL if the backend supports the operation with that algorithm. Otherwise returns the reason, in
  // static storage. The result may only depend on values that are equal on all ranks, not on pointers or
  // v-counts of one rank.
  const char* (*supports)(void* state, const isthmus_operation* operation, int algorithm);

  // The algorithm names that can follow "backend:" in a rule. NULL-terminated, in static storage; may be NULL.
  // supports, enqueue and plan get an index into this array, or ISTHMUS_ANY_ALGORITHM. The runtime looks up the
  // name of a rule once and rejects unknown names, so that the index is always in range.
  const char* const* algorithms;

  // Starts `n` operations; a blocking backend also completes them. If n > 1, the operations belong to a group
  // and must progress together. Collectives keep their order. algorithms[i] belongs to operations[i].
  isthmus_status (*enqueue)(void* state, const isthmus_operation* operations, const int* algorithms, size_t n);

  // The runtime calls these before and after the enqueue calls of one group on several states of this backend
  // in one process. group_end starts the operations that enqueue collected. Both may be NULL.
  isthmus_status (*group_start)(void);
  isthmus_status (*group_end)(void);

  // Returns ISTHMUS_SUCCESS, or a failure that occurred after enqueue returned. Does not wait. May be NULL.
  isthmus_status (*poll)(void* state);
  // Ends all waits on this rank and, if possible, on the other ranks. Must not wait for work on the device, which
  // can depend on a backend that is aborted later. May be NULL.
  void (*abort)(void* state);
  // Waits up to the timeout until all enqueued operations are complete. NULL for blocking backends.
  isthmus_status (*synchronize)(void* state);
  // Returns "library version" for info, in static storage or storage of the state. May be NULL.
  const char* (*version)(void* state);

  // split returns a split_state from which `create` of the new communicator can build its state, or NULL.
  // Collective over all ranks of `state`; ranks with color < 0 get NULL. Bounded by the timeout.
  // discard_split_state releases a split_state that was not passed to create. Both may be NULL.
  void* (*split)(void* state, int color, int key);
  void (*discard_split_state)(void* split_state);

  // Registers a block of the symmetric heap that the program allocated. Collective, in the same order on all
  // ranks; may use context->allgather. Registration is optional and cannot fail. If a backend cannot register
  // the block, it logs this through context->log. Not called for blocks that backends allocate for themselves.
  void (*register_block)(void* state, const isthmus_heap_block* block);
  // Unregisters a block before it is released. Not collective: other ranks may keep their blocks. Not called
  // for blocks that live until destroy. register_block and unregister_block may both be NULL.
  void (*unregister_block)(void* state, const isthmus_heap_block* block);

  // Describes as JSON how the backend would execute an operation that it supports; used by explain. The result
  // may be NULL. Buffers and counts that only some ranks have are not set. The text is valid until the next
  // call on this state. May be NULL.
  const char* (*plan)(void* state, const isthmus_operation* operation, int algorithm);
} isthmus_backend;

// Returns the backend of a plug-in, which must export this function. The result and everything it points to
// must have static storage.
ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1(void);

#ifdef __cplusplus
}
#endif
#endif
