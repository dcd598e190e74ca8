#include "memory/copy/staging_lane.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

namespace isthmus {

staging_lane& staging_lane::get(device_driver& driver, isthmus_platform platform, int source_device,
                                int destination_device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& lanes = *new std::map<std::tuple<isthmus_platform, int, int>, std::unique_ptr<staging_lane>>;
  const std::lock_guard lock(mutex);
  auto& lane = lanes[{platform, source_device, destination_device}];
  if (lane == nullptr) lane.reset(new staging_lane(driver, source_device, destination_device));
  return *lane;
}

staging_lane::staging_lane(device_driver& driver, int source_device, int destination_device)
    : m_driver(driver),
      m_source_device(source_device),
      m_destination_device(destination_device),
      m_to_host_stream(driver, source_device),
      m_from_host_stream(driver, destination_device),
      m_source_begin(driver, source_device),
      m_destination_begin(driver, destination_device),
      m_end(driver, destination_device) {
  for (buffer& each : m_buffers) {
    each.memory = owned_pinned(driver, buffer_bytes);
    each.fill_event = owned_event(driver, source_device);
    each.drain_event = owned_event(driver, destination_device);
  }
}

// The first copy to the host and the last copy from the host overlap with nothing, so the first and the last
// chunk are small. Each chunk has a fixed cost (host calls, a gap between two commands of the copy engine), so
// chunk sizes double up to the buffer size and halve at the end.
std::uint64_t staging_lane::next_chunk_bytes(std::uint64_t copied_bytes, std::uint64_t bytes) {
  const std::uint64_t remaining = bytes - copied_bytes;
  const std::uint64_t ramp = std::min(copied_bytes, remaining / 2) / 4096 * 4096;
  return std::min({std::max(ramp, min_chunk_bytes), buffer_bytes, remaining});
}

void staging_lane::copy(void* destination, const void* source, std::uint64_t bytes, int stream_device,
                        native_stream stream) {
  const std::lock_guard lock(m_mutex);
  const native_event begin = stream_device == m_source_device ? m_source_begin : m_destination_begin;
  m_driver.record(stream_device, begin, stream);
  m_driver.wait(m_source_device, m_to_host_stream, begin);
  for (std::uint64_t copied_bytes = 0, chunk_bytes = 0; copied_bytes < bytes; copied_bytes += chunk_bytes) {
    buffer& buffer_slot = m_buffers[m_next++ % buffer_count];
    chunk_bytes = next_chunk_bytes(copied_bytes, bytes);
    const device_copy to_host{buffer_slot.memory, static_cast<const std::byte*>(source) + copied_bytes,
                              chunk_bytes};
    const device_copy from_host{static_cast<std::byte*>(destination) + copied_bytes, buffer_slot.memory,
                                chunk_bytes};
    if (buffer_slot.was_used) m_driver.wait(m_source_device, m_to_host_stream, buffer_slot.drain_event);
    m_driver.copy(m_source_device, {&to_host, 1}, m_to_host_stream);
    m_driver.record(m_source_device, buffer_slot.fill_event, m_to_host_stream);
    m_driver.wait(m_destination_device, m_from_host_stream, buffer_slot.fill_event);
    m_driver.copy(m_destination_device, {&from_host, 1}, m_from_host_stream);
    m_driver.record(m_destination_device, buffer_slot.drain_event, m_from_host_stream);
    buffer_slot.was_used = true;
  }
  m_driver.record(m_destination_device, m_end, m_from_host_stream);
  m_driver.wait(stream_device, stream, m_end);
}

}  // namespace isthmus
