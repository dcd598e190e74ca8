// Memory and stream of a rank: on a device, whose runtime is loaded at run time, or on the host.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "device/gpu/functions.hpp"

namespace bench {

class memory_place {
 public:
  // Errors: throws if the machine has no such device.
  explicit memory_place(isthmus_device device);
  memory_place(const memory_place&) = delete;
  memory_place& operator=(const memory_place&) = delete;
  ~memory_place();

  bool is_host() const { return m_device.platform == ISTHMUS_PLATFORM_HOST; }
  isthmus_device device() const { return m_device; }
  void* stream() const { return m_stream; }
  void* allocate(std::uint64_t bytes) const;
  void* allocate_pinned(std::uint64_t bytes) const;  // accessible by host and device
  void release(void* pointer) const;
  void release_pinned(void* pointer) const;
  // Enqueued on the stream; on the host it completes immediately.
  void copy(void* to, const void* from, std::uint64_t bytes) const;
  void wait() const;  // Blocking: until the stream is idle
  // Microseconds that the stream takes for what `work` enqueues, after what `align` enqueues. Blocking. Devices only.
  double stream_us(const std::function<void()>& align, const std::function<void()>& work);
  // Like stream_us, with the work in one captured graph. Errors: throws if the work cannot be captured.
  double graph_us(const std::function<void()>& align, const std::function<void()>& work);

 private:
  double elapsed_us();

  void check(int code) const {
    if (code != 0) throw std::runtime_error(m_runtime.get_error_string(code));
  }

  isthmus_device m_device;
  isthmus::device_runtime m_runtime;
  void* m_stream = nullptr;
  void *m_begin = nullptr, *m_end = nullptr;  // events
};

// A memory block that is freed with its owner.
class memory_block {
 public:
  memory_block(const memory_place& place, std::uint64_t bytes, bool pinned)
      : m_place(place),
        m_pinned(pinned),
        m_data(pinned ? place.allocate_pinned(bytes) : place.allocate(bytes)) {}
  memory_block(const memory_block&) = delete;
  memory_block& operator=(const memory_block&) = delete;
  ~memory_block() { m_pinned ? m_place.release_pinned(m_data) : m_place.release(m_data); }
  std::byte* data() const { return static_cast<std::byte*>(m_data); }

 private:
  const memory_place& m_place;
  bool m_pinned;
  void* m_data;
};

}  // namespace bench
