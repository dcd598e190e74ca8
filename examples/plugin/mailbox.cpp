// A backend of one's own: broadcast and allgather of host memory through blocks that all ranks see.
// docs/plugins.md goes through it.
#include <atomic>
#include <chrono>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <new>
#include <thread>

namespace {

constexpr std::uint64_t room = 64 * 1024;  // bytes that a rank gives at a time
constexpr int most_ranks = 64;
constexpr const char* here = "mailbox.cpp";

// Every rank has one in the symmetric heap.
struct mailbox {
  std::atomic<std::uint64_t> sent;              // the call whose data is here; the owner writes it
  std::atomic<std::uint64_t> read[most_ranks];  // the call whose data that rank has read; that rank writes it
  std::byte data[room];
};

struct state {
  const isthmus_backend_context& context;
  isthmus_heap_block block;
  std::uint64_t call = 0;

  mailbox& of(int rank) const { return *static_cast<mailbox*>(block.peers[rank]); }
};

// Collective. All ranks get this backend or none, and none starts before all boxes are empty.
isthmus_status create(const isthmus_backend_context* context, void** result) {
  *result = nullptr;
  isthmus_heap_block block{};
  const isthmus_status allocated = context->heap_allocate(context->runtime, sizeof(mailbox), &block);
  if (allocated != ISTHMUS_SUCCESS) return allocated;  // on all ranks alike
  isthmus::vote<> mine;
  for (int peer = 0; peer < context->size && !mine.is_refusal(); ++peer)
    if (block.peers[peer] == nullptr)
      mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, "it can't reach the memory of rank " + std::to_string(peer));
  if (context->size > most_ranks) mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, "mailbox has boxes for 64 ranks");
  auto* const made = mine.is_refusal() ? nullptr : new (std::nothrow) state{*context, block};
  if (!mine.is_refusal() && made == nullptr) mine.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, "no memory for the state");
  if (made != nullptr) new (&made->of(context->rank)) mailbox{};
  isthmus::votes<> all;
  const isthmus_status agreed = isthmus::agree(*context, here, mine, all);
  if (agreed == ISTHMUS_SUCCESS)
    *result = made;
  else
    delete made;
  return agreed;
}

void destroy(void* pointer) { delete static_cast<state*>(pointer); }

std::uint64_t bytes_of(const isthmus_operation& operation) {
  constexpr std::uint64_t sizes[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) bytes,
#include <isthmus/collectives.def>
  };
  return operation.count * sizes[operation.datatype];
}

// Looks only at what is the same on all ranks.
const char* supports(void*, const isthmus_operation* operation, const char*) {
  if (operation->collective != ISTHMUS_BROADCAST && operation->collective != ISTHMUS_ALLGATHER)
    return "mailbox has broadcast and allgather only";
  return bytes_of(*operation) > room ? "mailbox has room for 64 KiB of each rank" : nullptr;
}

// Until rank `peer` has set the flag; nobody waits for ever.
isthmus_status wait(const state& self, const std::atomic<std::uint64_t>& flag, int peer) {
  const isthmus_backend_context& context = self.context;
  const auto begin = std::chrono::steady_clock::now();
  while (flag.load(std::memory_order_acquire) < self.call) {
    if (context.is_aborted(context.runtime) != 0) return ISTHMUS_ERROR_ABORTED;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > context.timeout_s)
      return context.fail(context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, here, "does that rank make the same call?",
                          "rank %d waited %g s for rank %d", context.rank, context.timeout_s, peer);
    std::this_thread::yield();
  }
  return ISTHMUS_SUCCESS;
}

isthmus_status move(state& self, const isthmus_operation& operation) {
  const int rank = self.context.rank, size = self.context.size;
  const bool all_give = operation.collective == ISTHMUS_ALLGATHER;
  const int first = all_give ? 0 : operation.root, end = all_give ? size : first + 1;
  const std::uint64_t bytes = bytes_of(operation);
  ++self.call;
  if (first <= rank && rank < end) {
    if (bytes > 0) std::memcpy(self.of(rank).data, operation.send_buf, bytes);
    self.of(rank).sent.store(self.call, std::memory_order_release);
  }
  auto* to = static_cast<std::byte*>(operation.recv_buf);
  for (int source = first; source < end; ++source, to += bytes) {
    const isthmus_status sent = wait(self, self.of(source).sent, source);
    if (sent != ISTHMUS_SUCCESS) return sent;
    if (bytes > 0) std::memcpy(to, self.of(source).data, bytes);
  }
  // Who has been told by all may send again, or leave: nobody looks into its box any more.
  for (int peer = 0; peer < size; ++peer) self.of(peer).read[rank].store(self.call, std::memory_order_release);
  isthmus_status read = ISTHMUS_SUCCESS;
  for (int peer = 0; peer < size && read == ISTHMUS_SUCCESS; ++peer)
    read = wait(self, self.of(rank).read[peer], peer);
  return read;
}

isthmus_status enqueue(void* pointer, const isthmus_operation* operations, const char* const*, size_t n) {
  isthmus_status status = ISTHMUS_SUCCESS;
  for (size_t i = 0; i < n && status == ISTHMUS_SUCCESS; ++i)
    status = move(*static_cast<state*>(pointer), operations[i]);
  return status;
}

}  // namespace

ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1() {
  static const isthmus_backend mailbox = [] {
    isthmus_backend made{};  // what is not set is NULL
    made.struct_bytes = sizeof made;
    made.magic = ISTHMUS_BACKEND_MAGIC;
    made.abi_version = ISTHMUS_BACKEND_ABI;
    made.name = "mailbox";
    made.description = "broadcast and allgather through blocks of the symmetric heap";
    made.capabilities = ISTHMUS_BACKEND_BLOCKING;
    made.platforms = 1u << ISTHMUS_PLATFORM_HOST;
    made.create = create;
    made.destroy = destroy;
    made.supports = supports;
    made.enqueue = enqueue;
    return made;
  }();
  return &mailbox;
}
