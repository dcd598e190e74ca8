// An example backend: broadcast and allgather of host memory through blocks of the symmetric heap, which all
// ranks can access. docs/internals/backend_interface.md explains it.
#include <atomic>
#include <chrono>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <new>
#include <thread>

namespace {

constexpr std::uint64_t mailbox_bytes = 64 * 1024;  // bytes that one call can send per rank
constexpr int max_ranks = 64;
constexpr const char* source_file = "mailbox.cpp";

// The block of one rank in the symmetric heap. A sequence number is the number of a call.
struct mailbox {
  std::atomic<std::uint64_t> written_sequence;          // last call that wrote `data`; written by the owner
  std::atomic<std::uint64_t> read_sequence[max_ranks];  // last call that rank r has read; written by rank r
  std::byte data[mailbox_bytes];
};

struct mailbox_state {
  const isthmus_backend_context& context;
  isthmus_heap_block block;
  std::uint64_t sequence = 0;

  mailbox& box(int rank) const { return *static_cast<mailbox*>(block.peers[rank]); }
};

// Creates the state. Collective: all ranks get this backend or none. The vote also ensures that no rank sends
// before all mailboxes are initialized.
isthmus_status create(const isthmus_backend_context* context, void** result) {
  *result = nullptr;
  isthmus_heap_block block{};
  const isthmus_status heap_status = context->heap_allocate(context->runtime, sizeof(mailbox), &block);
  if (heap_status != ISTHMUS_SUCCESS) return heap_status;  // the same on all ranks
  isthmus::vote<> own_vote;
  for (int peer = 0; peer < context->size && !own_vote.is_refusal(); ++peer)
    if (block.peers[peer] == nullptr)
      own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "cannot access the memory of rank " + std::to_string(peer));
  if (context->size > max_ranks)
    own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "mailbox supports at most 64 ranks");
  auto* const new_state = own_vote.is_refusal() ? nullptr : new (std::nothrow) mailbox_state{*context, block};
  if (!own_vote.is_refusal() && new_state == nullptr)
    own_vote.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, "cannot allocate the state");
  if (new_state != nullptr) new (&new_state->box(context->rank)) mailbox{};
  isthmus::votes<> all_votes;
  const isthmus_status status = isthmus::agree(*context, source_file, own_vote, all_votes);
  if (status == ISTHMUS_SUCCESS)
    *result = new_state;
  else
    delete new_state;
  return status;
}

void destroy(void* pointer) { delete static_cast<mailbox_state*>(pointer); }

std::uint64_t bytes_of(const isthmus_operation& operation) {
  constexpr std::uint64_t sizes[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) bytes,
#include <isthmus/collectives.def>
  };
  return operation.count * sizes[operation.datatype];
}

// Depends only on values that are equal on all ranks.
const char* supports(void*, const isthmus_operation* operation, int) {
  if (operation->collective != ISTHMUS_BROADCAST && operation->collective != ISTHMUS_ALLGATHER)
    return "mailbox only supports broadcast and allgather";
  return bytes_of(*operation) > mailbox_bytes ? "mailbox supports at most 64 KiB per rank" : nullptr;
}

// Waits until rank `peer` has set the flag, the communicator is aborted or the timeout has expired.
isthmus_status wait_for_sequence(const mailbox_state& self, const std::atomic<std::uint64_t>& flag, int peer) {
  const isthmus_backend_context& context = self.context;
  const auto begin = std::chrono::steady_clock::now();
  while (flag.load(std::memory_order_acquire) < self.sequence) {
    if (context.is_aborted(context.runtime) != 0) return ISTHMUS_ERROR_ABORTED;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > context.timeout_s)
      return context.fail(context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, source_file,
                          "check that this rank issues the same call", "rank %d waited %g s for rank %d",
                          context.rank, context.timeout_s, peer);
    std::this_thread::yield();
  }
  return ISTHMUS_SUCCESS;
}

isthmus_status run_operation(mailbox_state& self, const isthmus_operation& operation) {
  const int rank = self.context.rank, size = self.context.size;
  const bool all_ranks_send = operation.collective == ISTHMUS_ALLGATHER;
  const int first = all_ranks_send ? 0 : operation.root, end = all_ranks_send ? size : first + 1;
  const std::uint64_t bytes = bytes_of(operation);
  ++self.sequence;
  if (first <= rank && rank < end) {
    if (bytes > 0) std::memcpy(self.box(rank).data, operation.send_buf, bytes);
    self.box(rank).written_sequence.store(self.sequence, std::memory_order_release);
  }
  auto* destination = static_cast<std::byte*>(operation.recv_buf);
  for (int source = first; source < end; ++source, destination += bytes) {
    const isthmus_status wait_status = wait_for_sequence(self, self.box(source).written_sequence, source);
    if (wait_status != ISTHMUS_SUCCESS) return wait_status;
    if (bytes > 0) std::memcpy(destination, self.box(source).data, bytes);
  }
  // Acknowledge the data. After all acknowledgements, no rank reads this mailbox, so the rank may send
  // again or exit.
  for (int peer = 0; peer < size; ++peer)
    self.box(peer).read_sequence[rank].store(self.sequence, std::memory_order_release);
  isthmus_status status = ISTHMUS_SUCCESS;
  for (int peer = 0; peer < size && status == ISTHMUS_SUCCESS; ++peer)
    status = wait_for_sequence(self, self.box(rank).read_sequence[peer], peer);
  return status;
}

isthmus_status enqueue(void* pointer, const isthmus_operation* operations, const int*, size_t n) {
  isthmus_status status = ISTHMUS_SUCCESS;
  for (size_t i = 0; i < n && status == ISTHMUS_SUCCESS; ++i)
    status = run_operation(*static_cast<mailbox_state*>(pointer), operations[i]);
  return status;
}

}  // namespace

ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1() {
  static const isthmus_backend mailbox = [] {
    isthmus_backend table{};  // all other members are NULL
    table.struct_bytes = sizeof table;
    table.magic = ISTHMUS_BACKEND_MAGIC;
    table.abi_version = ISTHMUS_BACKEND_ABI;
    table.name = "mailbox";
    table.description = "broadcast and allgather through blocks of the symmetric heap";
    table.capabilities = ISTHMUS_BACKEND_BLOCKING;
    table.platforms = 1u << ISTHMUS_PLATFORM_HOST;
    table.create = create;
    table.destroy = destroy;
    table.supports = supports;
    table.enqueue = enqueue;
    return table;
  }();
  return &mailbox;
}
