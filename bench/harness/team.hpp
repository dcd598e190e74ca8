// The ranks of one measurement, as a spin barrier and a small shared block that are independent of the
// provider under test.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "clock.hpp"

namespace bench {

inline constexpr int max_ranks = 64;
inline constexpr int capacity = 100000;  // samples per size

// Lives in shared memory and is zero-initialized.
struct shared_block {
  alignas(64) std::atomic<std::uint32_t> arrived_ranks;
  alignas(64) std::atomic<std::uint32_t> generation;
  alignas(64) std::atomic<std::uint32_t> failed_rank;  // rank + 1 of the first rank that aborted
  double values[max_ranks];
  std::uint64_t wrong[max_ranks];
  std::uint64_t digest[max_ranks];
  alignas(64) unsigned char message[4096];  // from rank 0 to all
  std::uint32_t elapsed_ticks[max_ranks][capacity];
};

class team {
 public:
  // `block` must be mapped by every rank. Errors: waits longer than `timeout_s` throw.
  team(shared_block* block, int rank, int size, double timeout_s)
      : m_block(block), m_rank(rank), m_size(size), m_timeout_ns(static_cast<std::uint64_t>(timeout_s * 1e9)) {
    if (size > max_ranks)
      throw std::runtime_error("size " + std::to_string(size) +
                               " is too large; the harness supports at most 64 ranks");
  }

  int rank() const { return m_rank; }
  int size() const { return m_size; }
  shared_block& block() const { return *m_block; }

  // Returns after all ranks have entered. The last rank releases the others with one store.
  void barrier() const {
    const std::uint32_t generation = m_block->generation.load(std::memory_order_relaxed);
    if (m_block->arrived_ranks.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<std::uint32_t>(m_size)) {
      m_block->arrived_ranks.store(0, std::memory_order_relaxed);
      m_block->generation.store(generation + 1, std::memory_order_release);
      return;
    }
    for (std::uint64_t spins = 1; m_block->generation.load(std::memory_order_acquire) == generation; ++spins)
      if (spins % 4096 == 0) yield_or_throw(spins);
  }

  // Marks this rank as failed, so that no other rank waits for it.
  void abort() const { m_block->failed_rank.store(static_cast<std::uint32_t>(m_rank) + 1); }

  std::uint64_t decide(std::uint64_t value_of_rank_0) const {
    share(value_of_rank_0);
    return value_of_rank_0;
  }

  // Broadcasts the value of rank 0.
  template <typename Value>
  void share(Value& value) const {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof m_block->message);
    if (m_rank == 0) std::memcpy(m_block->message, &value, sizeof value);
    barrier();
    std::memcpy(&value, m_block->message, sizeof value);
    barrier();
  }

  // The allowed cores of each rank in rank order: "0 1 2 3", "0-1 2-3", or "any" if no rank is bound.
  // Collective; the result is the same on every rank.
  std::string placement() const {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    int first = 0, last = CPU_SETSIZE - 1;
    while (first < last && !CPU_ISSET(first, &allowed)) ++first;
    while (last > first && !CPU_ISSET(last, &allowed)) --last;
    m_block->values[m_rank] = first;
    m_block->wrong[m_rank] = static_cast<std::uint64_t>(last);
    barrier();
    std::string text;
    bool is_bound = false;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (int r = 0; r < m_size; ++r) {
      const int begin = static_cast<int>(m_block->values[r]), end = static_cast<int>(m_block->wrong[r]);
      is_bound |= end - begin + 1 < cores;
      text += (r == 0 ? "" : " ") + std::to_string(begin);
      if (end != begin) text += "-" + std::to_string(end);
    }
    barrier();
    return is_bound || cores == 1 ? text : "any";
  }

  // The maximum over the ranks. Collective.
  double slowest(double value) const {
    m_block->values[m_rank] = value;
    barrier();
    const double worst = *std::max_element(m_block->values, m_block->values + m_size);
    barrier();
    return worst;
  }

  // The sum over the ranks. Collective.
  std::uint64_t sum(std::uint64_t value) const {
    m_block->wrong[m_rank] = value;
    barrier();
    std::uint64_t all = 0;
    for (int rank = 0; rank < m_size; ++rank) all += m_block->wrong[rank];
    barrier();
    return all;
  }

 private:
  void yield_or_throw(std::uint64_t spins) const {
    if (const std::uint32_t failed_rank = m_block->failed_rank.load())
      throw std::runtime_error("rank " + std::to_string(failed_rank - 1) + " aborted");
    static thread_local std::uint64_t since = 0;
    if (spins == 4096) since = steady_ns();
    if (steady_ns() - since > m_timeout_ns)
      throw std::runtime_error("the other ranks did not reach the barrier within the timeout; raise --timeout");
    sched_yield();
  }

  shared_block* m_block;
  int m_rank, m_size;
  std::uint64_t m_timeout_ns;
};

// A block shared with child processes that are forked later.
inline shared_block* map_for_children() {
  void* pointer =
      mmap(nullptr, sizeof(shared_block), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) throw std::runtime_error("mmap: " + std::string(std::strerror(errno)));
  return static_cast<shared_block*>(pointer);
}

// A block for unrelated processes: one creates it under a fresh name, the others open it, and the name is
// unlinked as soon as all have mapped it.
inline std::string fresh_name() {
  std::random_device random;
  char name[64];
  std::snprintf(name, sizeof name, "/isthmus-bench-%d-%08x%08x", getpid(), random(), random());
  return name;
}

inline shared_block* map_named(const std::string& name, bool create) {
  const int file = shm_open(name.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
  if (file < 0) throw std::runtime_error("shm_open " + name + ": " + std::strerror(errno));
  if (create && ftruncate(file, sizeof(shared_block)) != 0) {
    close(file);
    throw std::runtime_error("ftruncate " + name + ": " + std::strerror(errno));
  }
  void* pointer = mmap(nullptr, sizeof(shared_block), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (pointer == MAP_FAILED) throw std::runtime_error("mmap: " + std::string(std::strerror(errno)));
  return static_cast<shared_block*>(pointer);
}

inline void unlink_named(const std::string& name) { shm_unlink(name.c_str()); }

}  // namespace bench
