// Lock-free lookup of the object that belongs to a handle of the program, within the few nanoseconds that a
// passed-through call may cost.
//
// Objects are reused but never freed. An object publishes its handle's key last, when it is complete, and
// clears it first. A lookup that races with the reuse of an object therefore only misses.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace isthmus::preload {

// `Object` must have `std::uintptr_t key() const` with acquire semantics. 0 is not a valid key.
template <typename Object>
class handle_cache {
 public:
  // Returns the object that was inserted last for this slot if it has this key, otherwise nullptr.
  Object* find(std::uintptr_t key) const {
    Object* const object = m_slots[slot_of(key)].load(std::memory_order_acquire);
    return object != nullptr && key != 0 && object->key() == key ? object : nullptr;
  }
  void insert(std::uintptr_t key, Object* object) {
    m_slots[slot_of(key)].store(object, std::memory_order_release);
  }

 private:
  static constexpr std::size_t slot_count = 64;
  // Handles are small integers in some MPI implementations and addresses in others.
  static std::size_t slot_of(std::uintptr_t key) {
    return (key ^ key >> 4 ^ key >> 6 ^ key >> 12 ^ key >> 20) % slot_count;
  }

  std::array<std::atomic<Object*>, slot_count> m_slots{};
};

}  // namespace isthmus::preload
