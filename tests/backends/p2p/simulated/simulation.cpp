#include "simulation.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

simulated_index threadIdx, blockIdx, blockDim, gridDim;

namespace simulated {

using isthmus::p2p::kernel_arguments;
using isthmus::p2p::scratch_header;
using isthmus::p2p::host_flags;

namespace {

struct launched {
  void (*kernel)(kernel_arguments);
  kernel_arguments arguments;
  int blocks, threads;
};

struct block;
struct fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  block* of;
  int thread;
};

// A block's threads, and the barrier among them.
struct block {
  const launched* what;
  device* on;
  int index;
  std::vector<std::unique_ptr<fiber>> fibers;
  std::vector<fiber*> ready;
  std::vector<fiber*> at_barrier;
  int predicate = 0, result = 0;
  int left = 0;  // threads that have not ended
};

// Half a vector on its way: what becomes visible at once.
struct flying {
  std::uint64_t* to;
  std::uint64_t value;
};

std::mt19937* random_order = nullptr;
ucontext_t scheduler;
fiber* running = nullptr;

enum class pause { ready, at_barrier };
void leave(pause how) {
  fiber* const self = running;
  (how == pause::ready ? self->of->ready : self->of->at_barrier).push_back(self);
  swapcontext(&self->context, &scheduler);
}

void body() {
  fiber* const self = running;
  self->of->what->kernel(self->of->what->arguments);
  --self->of->left;
  swapcontext(&self->context, &scheduler);
}

template <typename Value>
Value take_any(std::vector<Value>& from) {
  std::swap(from[(*random_order)() % from.size()], from.back());
  Value taken = from.back();
  from.pop_back();
  return taken;
}

}  // namespace

class device {
 public:
  explicit device(int size) : m_scratch(isthmus::p2p::scratch_bytes(size) / sizeof(std::uint64_t)) {
    for (auto& step : header().packet_step) step = 1;
  }
  scratch_header& header() { return *reinterpret_cast<scratch_header*>(m_scratch.data()); }
  std::byte* scratch() { return reinterpret_cast<std::byte*>(m_scratch.data()); }
  host_flags& flags() { return m_flags; }
  bool is_idle() const { return m_queue.empty(); }
  void launch(const launched& what) { m_queue.push_back(what); }
  void send(flying store) { m_stores.push_back(store); }

  // One thread, up to where it may be put off, or one store.
  void advance() {
    if (m_blocks.empty()) return begin();
    if (!m_stores.empty() && (*random_order)() % 3 == 0) return deliver(take_any(m_stores));
    std::erase_if(m_blocks, [](const auto& each) { return each->left == 0; });
    if (m_blocks.empty()) return complete();
    block& some = *m_blocks[(*random_order)() % m_blocks.size()];
    running = take_any(some.ready);
    threadIdx.x = static_cast<unsigned>(running->thread);
    blockIdx.x = static_cast<unsigned>(some.index);
    blockDim.x = static_cast<unsigned>(some.what->threads);
    gridDim.x = static_cast<unsigned>(some.what->blocks);
    swapcontext(&scheduler, &running->context);
    if (!some.at_barrier.empty() && some.at_barrier.size() == static_cast<std::size_t>(some.left)) {
      some.result = std::exchange(some.predicate, 0);
      some.ready = std::exchange(some.at_barrier, {});
    }
  }

 private:
  static void deliver(flying store) { std::memcpy(store.to, &store.value, sizeof store.value); }

  void begin() {
    const launched& what = m_queue.front();
    for (int b = 0; b < what.blocks; ++b) {
      auto made = std::make_unique<block>();
      made->what = &what;
      made->on = this;
      made->index = b;
      made->left = what.threads;
      for (int t = 0; t < what.threads; ++t) made->fibers.push_back(thread_of(*made, t));
      for (const auto& each : made->fibers) made->ready.push_back(each.get());
      m_blocks.push_back(std::move(made));
    }
  }

  static std::unique_ptr<fiber> thread_of(block& of, int thread) {
    constexpr std::size_t stack_bytes = 32 * 1024;
    auto made = std::make_unique<fiber>();
    made->stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    made->of = &of;
    made->thread = thread;
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = made->stack.get();
    made->context.uc_stack.ss_size = stack_bytes;
    makecontext(&made->context, body, 0);
    return made;
  }

  // A kernel's stores have arrived when it ends.
  void complete() {
    for (const flying& each : m_stores) deliver(each);
    m_stores.clear();
    m_queue.pop_front();
  }

  std::vector<std::uint64_t> m_scratch;
  host_flags m_flags{};
  std::deque<launched> m_queue;
  std::vector<std::unique_ptr<block>> m_blocks;  // of the queue's first
  std::vector<flying> m_stores;
};

machine::machine(int size, unsigned seed) : m_random(seed) {
  random_order = &m_random;
  for (int i = 0; i < size; ++i) m_devices.push_back(std::make_unique<device>(size));
}
machine::~machine() = default;

kernel_arguments machine::arguments_of(int rank) const {
  kernel_arguments made{};
  made.rank = rank;
  made.size = size();
  made.divisor = 1;
  for (int i = 0; i < size(); ++i)
    made.scratch[i] = m_devices[static_cast<std::size_t>((rank + i) % size())]->scratch();
  made.flags = &flags(rank);
  made.timeout_ns = UINT64_MAX / 2;
  return made;
}
void* machine::stream(int rank) const { return m_devices[static_cast<std::size_t>(rank)].get(); }
scratch_header& machine::header(int rank) const { return m_devices[static_cast<std::size_t>(rank)]->header(); }
host_flags& machine::flags(int rank) const { return m_devices[static_cast<std::size_t>(rank)]->flags(); }
bool machine::is_idle(int rank) const { return m_devices[static_cast<std::size_t>(rank)]->is_idle(); }

bool machine::run(long steps) {
  std::vector<int> all(m_devices.size());
  std::iota(all.begin(), all.end(), 0);
  return run(all, steps);
}

bool machine::run(const std::vector<int>& ranks, long steps) {
  std::vector<device*> busy;
  const auto look = [&] {
    busy.clear();
    for (const int rank : ranks)
      if (!is_idle(rank)) busy.push_back(m_devices[static_cast<std::size_t>(rank)].get());
    return !busy.empty();
  };
  while (look()) {
    // For a while some are slow, and one stands still.
    const std::size_t still = m_random() % (busy.size() + 1), favourite = m_random() % busy.size();
    for (unsigned stretch = 1 + m_random() % 3000; stretch > 0; --stretch) {
      if (steps-- <= 0) return false;
      const std::size_t taken = m_random() % 2 == 0 ? favourite : m_random() % busy.size();
      if (taken == still && busy.size() > 1) continue;
      if (busy[taken]->is_idle()) break;
      busy[taken]->advance();
    }
  }
  return true;
}

}  // namespace simulated

int __syncthreads_or(int predicate) {
  simulated::block* const of = simulated::running->of;
  of->predicate |= predicate;
  simulated::leave(simulated::pause::at_barrier);
  return of->result;
}

namespace isthmus::p2p {

gpu_error gpu_launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments, gpu_stream stream,
                            bool) {
  static_cast<simulated::device*>(stream)->launch({reinterpret_cast<void (*)(kernel_arguments)>(const_cast<void*>(kernel)),
                                                   *static_cast<const kernel_arguments*>(arguments[0]),
                                                   static_cast<int>(blocks.x), static_cast<int>(threads.x)});
  return gpu_success;
}

uint4 load_remote(const uint4* from) {
  simulated::leave(simulated::pause::ready);
  uint4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store_remote(uint4* to, uint4 value) {
  std::uint64_t halves[2];
  std::memcpy(halves, &value, sizeof halves);
  for (int i = 0; i < 2; ++i)
    simulated::running->of->on->send({reinterpret_cast<std::uint64_t*>(to) + i, halves[i]});
}

std::uint64_t now_ns() {
  static std::uint64_t time = 0;
  return time += 1000000;
}

}  // namespace isthmus::p2p
