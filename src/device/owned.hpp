// Owners of what a device driver gives out: a stream, an event, pinned host memory, device memory. Each is made
// by its constructor, which throws what the driver throws, can be moved, and gives back what it holds when it
// ends; a default one holds nothing. They convert to the driver's own handle.
//
// A destructor can't throw, and after a fault of the device its calls fail: what can't be given back is said in
// the debug log and lost. The driver outlives its owners (device_driver::get never deletes one).
#pragma once

#include <cstdint>
#include <utility>

#include "device/driver.hpp"

namespace isthmus {

// What the four have in common; not used by itself.
class owned_object {
 public:
  owned_object(const owned_object&) = delete;
  owned_object& operator=(const owned_object&) = delete;

  // NOLINTNEXTLINE(google-explicit-constructor): a handle is what every call of the driver wants
  operator void*() const { return m_object; }
  void* get() const { return m_object; }
  void reset() noexcept;
  // Nobody gives it back: a device that is stuck may still use it.
  void abandon() noexcept { m_object = nullptr; }

 protected:
  using release_function = void (*)(device_driver& driver, int device, std::uint64_t bytes, void* object);

  owned_object() = default;
  owned_object(device_driver& driver, int device, std::uint64_t bytes, void* object, release_function release)
      : m_driver(&driver), m_device(device), m_bytes(bytes), m_object(object), m_release(release) {}
  owned_object(owned_object&& other) noexcept { swap(other); }
  owned_object& operator=(owned_object&& other) noexcept {
    if (this == &other) return *this;
    reset();
    swap(other);
    return *this;
  }
  ~owned_object() { reset(); }

  std::uint64_t size() const { return m_object == nullptr ? 0 : m_bytes; }

 private:
  void swap(owned_object& other) noexcept {
    std::swap(m_driver, other.m_driver);
    std::swap(m_device, other.m_device);
    std::swap(m_bytes, other.m_bytes);
    std::swap(m_object, other.m_object);
    std::swap(m_release, other.m_release);
  }

  device_driver* m_driver = nullptr;
  int m_device = -1;
  std::uint64_t m_bytes = 0;
  void* m_object = nullptr;
  release_function m_release = nullptr;
};

class owned_stream final : public owned_object {
 public:
  owned_stream() = default;
  owned_stream(device_driver& driver, int device, stream_priority priority = stream_priority::normal);
};

enum class event_timing { off, on };  // on: elapsed_us may be asked

class owned_event final : public owned_object {
 public:
  owned_event() = default;
  owned_event(device_driver& driver, int device, event_timing timing = event_timing::off);
};

// Host memory that every device of the platform reaches, zeros at first. What its owners give back is kept for
// owners to come and never goes to the driver: freeing it waits for all streams of a device, and a stream of
// another rank of this process may wait for this very thread.
class owned_pinned final : public owned_object {
 public:
  owned_pinned() = default;
  owned_pinned(device_driver& driver, std::uint64_t bytes);
  std::uint64_t bytes() const { return size(); }
};

// Plain memory of one device, not initialised. The caller has waited for the work that uses it.
class owned_memory final : public owned_object {
 public:
  owned_memory() = default;
  owned_memory(device_driver& driver, int device, std::uint64_t bytes);
  std::uint64_t bytes() const { return size(); }
};

}  // namespace isthmus
