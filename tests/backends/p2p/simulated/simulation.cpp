// The checks of longjmp abort a jump to another stack.
#undef _FORTIFY_SOURCE
#include "simulation.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

simulated_index threadIdx, blockIdx, blockDim, gridDim;

namespace simulated {

using isthmus::p2p::channel_arguments;
using isthmus::p2p::host_flags;

namespace {

struct kernel_launch {
  std::function<void()> kernel;
  dim3 blocks, threads;
};

// A copy to the memory of a block, which a thread has started.
struct pending_copy {
  uint4* to;
  const void* from;  // nullptr: zeros
  int group;
};

// Stacks of deleted fibers. New memory costs a page fault for every page that a thread touches.
std::vector<std::unique_ptr<std::byte[]>> free_stacks;

struct block;
struct fiber {
  ~fiber() { free_stacks.push_back(std::move(stack)); }

  ucontext_t entry;
  jmp_buf position;
  bool is_started = false;
  std::unique_ptr<std::byte[]> stack;
  block* owner;
  int thread;
  std::vector<pending_copy> copies;
  int copy_groups = 0;
};

// The threads of a block and their barrier.
struct block {
  const kernel_launch* launch;
  device* owner_device;
  simulated_index index;
  std::vector<std::unique_ptr<fiber>> fibers;
  std::vector<fiber*> ready;
  std::vector<fiber*> at_barrier;
  int predicate = 0, result = 0;
  std::array<float, isthmus::p2p::block_words> memory{};
  std::array<float, isthmus::p2p::slot_vectors> shuffled{};  // by thread
  std::vector<uint4> dynamic_memory;
  std::vector<isthmus::p2p::warp_tiles> tiles;  // by warp
  int running_threads = 0;                      // threads that have not ended
};

// A store in flight: half a vector or a word, which becomes visible atomically.
struct pending_store {
  const block* owner;
  void* to;
  std::uint64_t value;
  std::size_t bytes;
};

std::mt19937* random_order = nullptr;
jmp_buf scheduler;
fiber* running = nullptr;

// Jumps instead of swapcontext, which takes two system calls to save and restore the mask of signals.
void resume(fiber& next) {
  if (_setjmp(scheduler) != 0) return;
  if (std::exchange(next.is_started, true)) _longjmp(next.position, 1);
  setcontext(&next.entry);
}
void suspend(fiber& self) {
  if (_setjmp(self.position) == 0) _longjmp(scheduler, 1);
}

enum class pause_kind { ready, at_barrier };
void yield_fiber(pause_kind kind) {
  fiber* const self = running;
  (kind == pause_kind::ready ? self->owner->ready : self->owner->at_barrier).push_back(self);
  suspend(*self);
}

void run_fiber() {
  fiber* const self = running;
  self->owner->launch->kernel();
  --self->owner->running_threads;
  suspend(*self);
}

template <typename Value>
Value take_any(std::vector<Value>& from) {
  std::swap(from[(*random_order)() % from.size()], from.back());
  Value choice = from.back();
  from.pop_back();
  return choice;
}

}  // namespace

class device {
 public:
  explicit device(int size)
      : m_bytes(isthmus::p2p::inbox_offset + isthmus::p2p::inbox_bytes(size)),
        m_scratch(static_cast<std::byte*>(std::calloc(m_bytes, 1)), std::free) {}
  std::byte* scratch() { return m_scratch.get(); }
  host_flags& flags() { return m_flags; }
  bool is_idle() const { return m_queue.empty(); }
  void launch(const kernel_launch& launch) { m_queue.push_back(launch); }
  // No rank waits for a store to the device's own memory, so some of them are slow: they arrive only before a fence, a
  // release or the end of the kernel.
  void send(pending_store store) {
    const auto* const to = static_cast<const std::byte*>(store.to);
    const bool is_own = to >= m_scratch.get() && to < m_scratch.get() + m_bytes;
    (is_own && (*random_order)() % 4 == 0 ? m_slow_stores : m_stores).push_back(store);
  }
  // Release order: the stores that precede a barrier of the block arrive first.
  void deliver_stores_of(const block* owner) {
    for (std::vector<pending_store>* const stores : {&m_stores, &m_slow_stores}) {
      for (const pending_store& each : *stores)
        if (each.owner == owner) deliver(each);
      std::erase_if(*stores, [owner](const pending_store& each) { return each.owner == owner; });
    }
  }

  // Runs one thread until it yields, or delivers one store.
  void advance() {
    if (m_blocks.empty()) return begin();
    if (!m_stores.empty() && (*random_order)() % 3 == 0) return deliver(take_any(m_stores));
    std::erase_if(m_blocks, [](const auto& item) { return item->running_threads == 0; });
    if (m_blocks.empty()) return complete();
    block& block_to_run = *m_blocks[(*random_order)() % m_blocks.size()];
    running = take_any(block_to_run.ready);
    threadIdx.x = static_cast<unsigned>(running->thread);
    blockIdx = block_to_run.index;
    blockDim.x = block_to_run.launch->threads.x;
    gridDim.x = block_to_run.launch->blocks.x;
    resume(*running);
    if (!block_to_run.at_barrier.empty() &&
        block_to_run.at_barrier.size() == static_cast<std::size_t>(block_to_run.running_threads)) {
      block_to_run.result = std::exchange(block_to_run.predicate, 0);
      block_to_run.ready = std::exchange(block_to_run.at_barrier, {});
    }
  }

 private:
  static void deliver(pending_store store) { std::memcpy(store.to, &store.value, store.bytes); }

  void begin() {
    const kernel_launch& launch = m_queue.front();
    for (unsigned b = 0; b < launch.blocks.x * launch.blocks.y; ++b) {
      auto result = std::make_unique<block>();
      result->launch = &launch;
      result->owner_device = this;
      result->index = {b % launch.blocks.x, b / launch.blocks.x};
      const int threads = static_cast<int>(launch.threads.x);
      result->running_threads = threads;
      for (int t = 0; t < threads; ++t) result->fibers.push_back(make_fiber(*result, t));
      for (const auto& item : result->fibers) result->ready.push_back(item.get());
      m_blocks.push_back(std::move(result));
    }
  }

  static std::unique_ptr<fiber> make_fiber(block& owner, int thread) {
    constexpr std::size_t stack_bytes = 32 * 1024;
    auto result = std::make_unique<fiber>();
    if (free_stacks.empty()) free_stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(stack_bytes));
    result->stack = std::move(free_stacks.back());
    free_stacks.pop_back();
    result->owner = &owner;
    result->thread = thread;
    getcontext(&result->entry);
    result->entry.uc_stack.ss_sp = result->stack.get();
    result->entry.uc_stack.ss_size = stack_bytes;
    makecontext(&result->entry, run_fiber, 0);
    return result;
  }

  // All stores of a kernel arrive before it ends.
  void complete() {
    for (std::vector<pending_store>* const stores : {&m_stores, &m_slow_stores}) {
      for (const pending_store& item : *stores) deliver(item);
      stores->clear();
    }
    m_queue.pop_front();
  }

  std::size_t m_bytes;
  std::unique_ptr<std::byte, decltype(&std::free)> m_scratch;  // zero, and most of it is never touched
  host_flags m_flags{};
  std::deque<kernel_launch> m_queue;
  std::vector<std::unique_ptr<block>> m_blocks;  // of the running kernel
  std::vector<pending_store> m_stores, m_slow_stores;
};

machine::machine(int size, unsigned seed) : m_random(seed) {
  random_order = &m_random;
  for (int i = 0; i < size; ++i) m_devices.push_back(std::make_unique<device>(size));
}
machine::~machine() = default;

channel_arguments machine::arguments_of(int rank) const {
  channel_arguments result{};
  result.rank = rank;
  result.size = size();
  for (int i = 0; i < size(); ++i)
    result.scratch[i] = m_devices[static_cast<std::size_t>((rank + i) % size())]->scratch();
  result.flags = &flags(rank);
  result.timeout_ns = UINT64_MAX / 2;
  return result;
}
void* machine::stream(int rank) const { return m_devices[static_cast<std::size_t>(rank)].get(); }
void machine::clear_inboxes(int slots) const {
  using namespace isthmus::p2p;
  for (const auto& each : m_devices)
    std::memset(each->scratch() + inbox_offset, 0xff,
                static_cast<std::size_t>(slots) * depth * 2 * m_devices.size() * slot_vectors * 16);
}
void machine::set_counters(int rank, std::uint32_t steps) const {
  auto* const counters = reinterpret_cast<isthmus::p2p::lane_counters*>(
      m_devices[static_cast<std::size_t>(rank)]->scratch() + isthmus::p2p::counters_offset);
  std::fill_n(counters, isthmus::p2p::total_lanes * isthmus::p2p::ring_count,
              isthmus::p2p::lane_counters{steps, steps, steps, steps});
}
host_flags& machine::flags(int rank) const { return m_devices[static_cast<std::size_t>(rank)]->flags(); }
bool machine::is_idle(int rank) const { return m_devices[static_cast<std::size_t>(rank)]->is_idle(); }

bool machine::run(long steps) {
  std::vector<int> all(m_devices.size());
  std::iota(all.begin(), all.end(), 0);
  return run(all, steps);
}

bool machine::run(const std::vector<int>& ranks, long steps) {
  std::vector<device*> busy;
  const auto collect_busy = [&] {
    busy.clear();
    for (const int rank : ranks)
      if (!is_idle(rank)) busy.push_back(m_devices[static_cast<std::size_t>(rank)].get());
    return !busy.empty();
  };
  while (collect_busy()) {
    // For a random number of steps, one device is preferred and at most one is stalled.
    const std::size_t stalled_device = m_random() % (busy.size() + 1),
                      preferred_device = m_random() % busy.size();
    for (unsigned steps_left = 1 + m_random() % 3000; steps_left > 0; --steps_left) {
      if (steps-- <= 0) return false;
      const std::size_t choice = m_random() % 2 == 0 ? preferred_device : m_random() % busy.size();
      if (choice == stalled_device && busy.size() > 1) continue;
      if (busy[choice]->is_idle()) break;
      busy[choice]->advance();
    }
  }
  return true;
}

}  // namespace simulated

int __syncthreads_or(int predicate) {
  simulated::block* const owner = simulated::running->owner;
  owner->predicate |= predicate;
  simulated::yield_fiber(simulated::pause_kind::at_barrier);
  return owner->result;
}

void __threadfence_system() {
  simulated::block* const owner = simulated::running->owner;
  owner->owner_device->deliver_stores_of(owner);
}

namespace isthmus::p2p {

float* block_memory() { return simulated::running->owner->memory.data(); }

// All threads of the block shuffle at the same time.
float shuffle(float value, int mask) {
  simulated::block* const owner = simulated::running->owner;
  const int thread = simulated::running->thread;
  owner->shuffled[static_cast<std::size_t>(thread)] = value;
  __syncthreads();
  const float result = owner->shuffled[static_cast<std::size_t>(thread ^ mask)];
  __syncthreads();
  return result;
}

uint4* dynamic_memory() {
  auto& memory = simulated::running->owner->dynamic_memory;
  constexpr unsigned poison = 0xffffffff;  // NaN
  if (memory.empty()) memory.resize(227 * 1024 / sizeof(uint4), {poison, poison, poison, poison});
  return memory.data();
}

void copy_async(uint4* to, const void* from, std::uint32_t bytes) {
  simulated::fiber& self = *simulated::running;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) == 0;
  if (bytes != 0 && (bytes != sizeof(uint4) || !is_aligned)) std::abort();
  self.copies.push_back({to, bytes == 0 ? nullptr : from, self.copy_groups});
}
void end_copies() { ++simulated::running->copy_groups; }
// The copies arrive as late as possible.
void wait_for_copies(int groups) {
  simulated::fiber& self = *simulated::running;
  std::erase_if(self.copies, [&](const simulated::pending_copy& each) {
    if (each.group >= self.copy_groups - groups) return false;
    if (each.from == nullptr)
      *each.to = {};
    else
      std::memcpy(each.to, each.from, sizeof(uint4));
    return true;
  });
}
// The kernels call it in all warps at the same time.
void synchronize_warp() { __syncthreads(); }

const warp_tiles& exchange_tiles(uint4 upper, uint4 lower, uint4 columns) {
  simulated::block* const owner = simulated::running->owner;
  const auto thread = static_cast<std::size_t>(simulated::running->thread);
  if (owner->tiles.empty()) owner->tiles.resize((blockDim.x + 31) / 32);
  warp_tiles& own = owner->tiles[thread / 32];
  own.upper[thread % 32] = upper;
  own.lower[thread % 32] = lower;
  own.columns[thread % 32] = columns;
  synchronize_warp();
  return own;
}

gpu_error launch_simulated(std::function<void()> kernel, dim3 blocks, dim3 threads, gpu_stream stream) {
  static_cast<simulated::device*>(stream)->launch({std::move(kernel), blocks, threads});
  return gpu_success;
}

uint4 load_remote(const uint4* from) {
  simulated::yield_fiber(simulated::pause_kind::ready);
  uint4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store_remote(uint4* to, uint4 value) {
  std::uint64_t halves[2];
  std::memcpy(halves, &value, sizeof halves);
  simulated::block* const owner = simulated::running->owner;
  for (int i = 0; i < 2; ++i)
    owner->owner_device->send({owner, reinterpret_cast<std::uint64_t*>(to) + i, halves[i], sizeof halves[i]});
}

std::uint32_t load_flag(const std::uint32_t* from) {
  simulated::yield_fiber(simulated::pause_kind::ready);
  return *from;
}

void store_word(std::uint32_t* to, std::uint32_t value) {
  simulated::block* const owner = simulated::running->owner;
  owner->owner_device->send({owner, to, value, sizeof value});
}

void store_flag(std::uint32_t* to, std::uint32_t value) {
  simulated::block* const owner = simulated::running->owner;
  owner->owner_device->deliver_stores_of(owner);
  store_word(to, value);
}

std::uint64_t now_ns() {
  static std::uint64_t time = 0;
  return time += 1000000;
}

}  // namespace isthmus::p2p
