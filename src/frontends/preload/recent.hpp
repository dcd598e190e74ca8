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
class recent {
 public:
  // Of the object noted last for a key like this one; nullptr where that is another's.
  Object* find(std::uintptr_t key) const {
    Object* const known = m_places[place_of(key)].load(std::memory_order_acquire);
    return known != nullptr && key != 0 && known->key() == key ? known : nullptr;
  }
  void note(std::uintptr_t key, Object* object) {
    m_places[place_of(key)].store(object, std::memory_order_release);
  }

 private:
  static constexpr std::size_t size = 64;
  // Handles are small numbers in one MPI, addresses elsewhere.
  static std::size_t place_of(std::uintptr_t key) {
    return (key ^ key >> 4 ^ key >> 6 ^ key >> 12 ^ key >> 20) % size;
  }

  std::array<std::atomic<Object*>, size> m_places{};
};

}  // namespace isthmus::preload
