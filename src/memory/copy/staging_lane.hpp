// The lane of staged copies from one device to another: pinned memory in a few buffers, and a stream on either
// side, so that a chunk goes down to the host while the one before it goes up.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "device/owned.hpp"

namespace isthmus {

class staging_lane {
 public:
  // Made at the first use and kept for the life of the process. Throws what the driver throws.
  static staging_lane& get(device_driver& driver, isthmus_platform platform, int from, int to);

  // Enqueues the copy after what `stream` (of `stream_device`) holds, and lets `stream` wait for its end.
  // Copies of one lane go one after the other. Any thread.
  void copy(void* to, const void* from, std::uint64_t bytes, int stream_device, native_stream stream);

 private:
  static constexpr std::size_t buffer_count = 4;
  static constexpr std::uint64_t buffer_bytes = 8u << 20;
  static constexpr std::uint64_t min_chunk_bytes = 1u << 20;

  staging_lane(device_driver& driver, int from, int to);
  static std::uint64_t next_chunk_bytes(std::uint64_t done, std::uint64_t bytes);

  struct buffer {
    owned_pinned memory;
    owned_event filled;
    owned_event drained;
    bool was_used = false;
  };

  device_driver& m_driver;
  const int m_from, m_to;
  std::mutex m_mutex;
  owned_stream m_to_host_stream, m_from_host_stream;
  owned_event m_begin_from, m_begin_to;  // of the caller's stream, on either device
  owned_event m_end;
  std::array<buffer, buffer_count> m_buffers;
  std::size_t m_next = 0;
};

}  // namespace isthmus
