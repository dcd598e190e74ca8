// RAII owners of driver objects: streams, events, pinned host memory and device memory. The constructor
// creates the object and the destructor releases it. Owners are movable, convert to the native handle, and are
// empty if default-constructed.
//
// Errors: constructors throw the driver's errors. A destructor cannot throw: an object that cannot be released,
//   for example after a device fault, is reported in the debug log and leaked.
// Lifetime: the driver outlives its owners (device_driver::get never deletes a driver).
#pragma once

#include <cstdint>
#include <utility>

#include "device/driver.hpp"

namespace isthmus {

// Common base class of the owners; not used directly.
class owned_object {
 public:
  owned_object(const owned_object&) = delete;
  owned_object& operator=(const owned_object&) = delete;

  // NOLINTNEXTLINE(google-explicit-constructor): all driver functions take handles
  operator void*() const { return m_object; }
  void* get() const { return m_object; }
  void reset() noexcept;
  // Leaks the object: a stuck device may still use it.
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

enum class event_timing { off, on };  // on: elapsed_us accepts the event

class owned_event final : public owned_object {
 public:
  owned_event() = default;
  owned_event(device_driver& driver, int device, event_timing timing = event_timing::off);
};

// Zero-initialized host memory that every device of the platform can access. Released memory is reused by later
// owners and never returned to the driver: freeing it would wait for all streams of a device, and a stream of
// another rank of this process may wait for this thread.
class owned_pinned final : public owned_object {
 public:
  owned_pinned() = default;
  owned_pinned(device_driver& driver, std::uint64_t bytes);
  std::uint64_t bytes() const { return size(); }
};

// Uninitialized plain memory of one device. Work that uses it must have completed before it is released.
class owned_memory final : public owned_object {
 public:
  owned_memory() = default;
  owned_memory(device_driver& driver, int device, std::uint64_t bytes);
  std::uint64_t bytes() const { return size(); }
};

}  // namespace isthmus
