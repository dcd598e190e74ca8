// The program's communicators and the Isthmus communicators that are attached to them. Shared by the engines of the
// MPI and NCCL front ends.
//
// A passed-through call may cost only a few nanoseconds. Objects are therefore found without a lock. They are reused
// but never freed. An object publishes its handle's key last, when it is complete, and clears it first. A lookup that
// races with the reuse of an object only misses.
#pragma once

#include <isthmus/tools.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace isthmus::preload {

// The common state of an attached communicator. A key is the program's handle as a number; 0 is not a valid key.
class communicator_base {
 public:
  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  isthmus_communicator handle() const { return m_handle; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }

 protected:
  void publish(std::uintptr_t key) { m_key.store(key, std::memory_order_release); }
  void retract() { publish(0); }

  int m_rank = -1, m_size = 0;
  isthmus_communicator m_handle = nullptr;  // NULL if not attached

 private:
  std::atomic<std::uintptr_t> m_key{0};
};

// All objects of one front end. `Object` derives from communicator_base.
// Thread safety: all functions may be called from any thread.
template <typename Object>
class communicator_pool {
 public:
  // Returns the object that was cached last for this slot if it has this key, otherwise nullptr. Takes no lock.
  Object* find_cached(std::uintptr_t key) const {
    Object* const object = m_slots[slot_of(key)].load(std::memory_order_acquire);
    return object != nullptr && key != 0 && object->key() == key ? object : nullptr;
  }
  void cache(std::uintptr_t key, Object* object) {
    m_slots[slot_of(key)].store(object, std::memory_order_release);
  }

  // Returns an unused object. recycle() makes it available again.
  Object* acquire() {
    const std::lock_guard lock(m_mutex);
    if (m_unused.empty()) m_unused.push_back(m_all.emplace_back(new Object));
    Object* const object = m_unused.back();
    m_unused.pop_back();
    return object;
  }
  void recycle(Object* object) {
    const std::lock_guard lock(m_mutex);
    m_unused.push_back(object);
  }
  // All objects, including unused ones.
  std::vector<Object*> all() {
    const std::lock_guard lock(m_mutex);
    return m_all;
  }

 private:
  static constexpr std::size_t slot_count = 64;
  // Handles are small integers in some MPI implementations and addresses in others.
  static std::size_t slot_of(std::uintptr_t key) {
    return (key ^ key >> 4 ^ key >> 6 ^ key >> 12 ^ key >> 20) % slot_count;
  }

  std::array<std::atomic<Object*>, slot_count> m_slots{};
  std::mutex m_mutex;
  std::vector<Object*> m_all, m_unused;
};

// Caches what was decided about the calls of one communicator. A decision depends only on the arguments that are equal
// on all ranks. Not for calls with one count per rank.
template <typename Decision>
class decision_cache {
 public:
  // Returns the decision about `operation`, which query() makes if it is not cached.
  template <typename Query>
  const Decision& find(const isthmus_operation& operation, Query&& query) {
    const std::uint64_t signature =
        static_cast<std::uint64_t>(operation.collective) | static_cast<std::uint64_t>(operation.datatype) << 8 |
        static_cast<std::uint64_t>(operation.op) << 16 | static_cast<std::uint64_t>(operation.root) << 32;
    const std::uint64_t hash = (signature * 0x9e3779b97f4a7c15u) ^ (operation.count * 0xc2b2ae3d27d4eb4fu);
    entry& slot = m_entries[(hash >> 32) % m_entries.size()];
    if (slot.signature != signature || slot.count != operation.count) [[unlikely]]
      slot = {signature, operation.count, query()};
    return slot.decision;
  }
  void clear() { m_entries.fill({}); }

 private:
  struct entry {
    std::uint64_t signature = ~std::uint64_t{0}, count = 0;
    Decision decision{};
  };
  std::array<entry, 128> m_entries{};
};

// Returns the path that the rules select for an operation ("shm:packet"), or "" if no backend supports it.
inline std::string select_path(isthmus_communicator handle, const isthmus_operation& operation) {
  char path[96] = "";
  return isthmus_communicator_path(handle, &operation, path, sizeof path) == ISTHMUS_SUCCESS ? path : "";
}

// Options of an attached communicator. `external_backends`: names of the backends that are equivalent to the program's
// own library. The timeout is the largest that the core accepts: the program's library has none, so the engine must not
// add any.
inline isthmus_communicator_options attach_options(const char* external_backends) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 1e9;
  options.external_backends = external_backends;
  return options;
}

// Returns whether a call failed because ranks were lost. The program's own library then executes this call and all
// later ones: it waits or reports an error, as it would without Isthmus.
inline bool is_rank_lost(isthmus_status status) {
  return status == ISTHMUS_ERROR_REMOTE || status == ISTHMUS_ERROR_ABORTED || status == ISTHMUS_ERROR_TIMEOUT ||
         status == ISTHMUS_ERROR_INVALID_USAGE;
}

// Returns the message of the calling thread's last failure.
inline std::string last_error_message() {
  isthmus_error_info failure;
  isthmus_last_error(&failure);
  return failure.message;
}

}  // namespace isthmus::preload
