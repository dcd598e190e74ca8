// A backend that touches no buffer. It records the calls of the runtime and fails when a test requests it. It
// is a real plug-in (a shared library with the entry point), and tests also link it to control it.
#pragma once

#include <isthmus/backend.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace standin {

enum class event {
  create,
  destroy,
  enqueue,
  group_start,
  group_end,
  abort,
  synchronize,
  split,
  discard_split_state,
  register_block,
  unregister_block
};

struct record {
  event what;
  int rank;  // -1 for group_start and group_end
  std::vector<isthmus_operation> operations;
  std::vector<std::string> algorithms;             // "" for ISTHMUS_ANY_ALGORITHM, "?" if out of range
  std::vector<std::vector<std::uint64_t>> arrays;  // send counts, displs, recv counts, displs of each operation
  std::thread::id thread;
  void* part = nullptr;        // create: the context's value; split: the returned value
  isthmus_heap_block block{};  // register_block, unregister_block; `peers` is not stored
};

// The behavior of the stand-in. Set before communicators are created. The functions get the rank
// and may be empty.
struct script {
  std::uint32_t capabilities = 0;
  std::uint32_t platforms = (1u << ISTHMUS_PLATFORM_COUNT) - 1;
  std::function<isthmus_status(int rank)> create;
  std::function<void(const isthmus_backend_context& context)> in_create;  // before `create`
  enum class exchange { none, rank, vote, heap_block };
  exchange exchange_in_create = exchange::none;  // another exchange with all ranks, after
  std::function<isthmus_status(int rank, const isthmus_operation& first)> enqueue;
  std::function<const char*(const isthmus_operation& operation, int algorithm)> supports;
  std::function<isthmus_status()> group_start;
  std::function<isthmus_status()> group_end;
  std::function<isthmus_status(int rank)> poll;
  std::function<isthmus_status(int rank)> synchronize;
  std::function<void(int rank)> abort;
  std::function<void*(int rank, int color, int key)> split;  // empty: NULL
  std::string failure = "scripted failure";                  // message for context->fail; "" reports nothing
  std::int64_t native_code = 77;
};

// Clears all records and installs a script. Must not be called while a call runs. The capabilities apply to
// communicators that are created afterwards.
void reset(script next = {});
std::vector<record> records();
std::vector<record> records(event kind);
int live_states();
int supports_calls();

// The context of a rank's live state, for calls into the runtime. NULL if there is none.
const isthmus_backend_context* context_of(int rank);

// The path of the plug-in, and a configuration that selects it for every operation.
std::string path();
std::string configuration();

}  // namespace standin
