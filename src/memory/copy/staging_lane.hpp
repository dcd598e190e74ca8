// Staged copies from one device to another through pinned host buffers. Each side has a stream, so that one
// chunk is copied to the host while the previous one is copied to the destination.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "device/owned.hpp"

namespace isthmus {

class staging_lane {
 public:
  // Returns the lane for a pair of devices, which is created on first use and never destroyed. Throws errors
  // of the driver.
  static staging_lane& get(device_driver& driver, isthmus_platform platform, int source_device,
                           int destination_device);

  // Enqueues the copy.
  // Ordering: the copy starts after the current work of `stream` (on `stream_device`), and later work of
  // `stream` waits for it. Copies of one lane are serialized.
  // Thread safety: can be called from any thread.
  void copy(void* destination, const void* source, std::uint64_t bytes, int stream_device,
            native_stream stream);

 private:
  static constexpr std::size_t buffer_count = 4;
  static constexpr std::uint64_t buffer_bytes = 8u << 20;
  static constexpr std::uint64_t min_chunk_bytes = 1u << 20;

  staging_lane(device_driver& driver, int source_device, int destination_device);
  static std::uint64_t next_chunk_bytes(std::uint64_t copied_bytes, std::uint64_t bytes);

  struct buffer {
    owned_pinned memory;
    owned_event fill_event;
    owned_event drain_event;
    bool was_used = false;
  };

  device_driver& m_driver;
  const int m_source_device, m_destination_device;
  std::mutex m_mutex;
  owned_stream m_to_host_stream, m_from_host_stream;
  owned_event m_source_begin, m_destination_begin;  // recorded on the caller's stream, on either device
  owned_event m_end;
  std::array<buffer, buffer_count> m_buffers;
  std::size_t m_next = 0;
};

}  // namespace isthmus
