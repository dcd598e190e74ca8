// How a preloaded library finds what stands beside a handle of the program's: without a lock, in the few
// nanoseconds that a call which passes through may cost.
//
// Objects are never freed but used again. One shows the key of the handle that it stands for, and that last,
// when it is complete, and takes it back first: so a find that meets an object being replaced misses, no more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace isthmus::preload {

// `Object` has `std::uintptr_t key() const`, an acquiring load; 0 is no key.
template <typename Object>
class handle_cache {
 public:
  // Of the object noted last for a key like this one; nullptr where that is another's.
  Object* find(std::uintptr_t key) const {
    Object* const object = m_slots[slot_of(key)].load(std::memory_order_acquire);
    return object != nullptr && key != 0 && object->key() == key ? object : nullptr;
  }
  void insert(std::uintptr_t key, Object* object) {
    m_slots[slot_of(key)].store(object, std::memory_order_release);
  }

 private:
  static constexpr std::size_t slot_count = 64;
  // Handles are small numbers in one MPI, addresses elsewhere.
  static std::size_t slot_of(std::uintptr_t key) {
    return (key ^ key >> 4 ^ key >> 6 ^ key >> 12 ^ key >> 20) % slot_count;
  }

  std::array<std::atomic<Object*>, slot_count> m_slots{};
};

}  // namespace isthmus::preload
