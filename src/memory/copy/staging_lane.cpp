#include "memory/copy/staging_lane.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

namespace isthmus {

staging_lane& staging_lane::get(device_driver& driver, isthmus_platform platform, int from, int to) {
  static std::mutex& mutex = *new std::mutex;
  static auto& lanes = *new std::map<std::tuple<isthmus_platform, int, int>, std::unique_ptr<staging_lane>>;
  const std::lock_guard lock(mutex);
  auto& lane = lanes[{platform, from, to}];
  if (lane == nullptr) lane.reset(new staging_lane(driver, from, to));
  return *lane;
}

staging_lane::staging_lane(device_driver& driver, int from, int to)
    : m_driver(driver),
      m_from(from),
      m_to(to),
      m_to_host_stream(driver, from),
      m_from_host_stream(driver, to),
      m_begin_from(driver, from),
      m_begin_to(driver, to),
      m_end(driver, to) {
  for (buffer& each : m_buffers) {
    each.memory = owned_pinned(driver, buffer_bytes);
    each.filled = owned_event(driver, from);
    each.drained = owned_event(driver, to);
  }
}

// The first chunk goes down while nothing goes up, and the last one up while nothing goes down, so these are
// small; but each chunk has a price (host calls, a gap between two commands of a copy engine), so those between
// them double up to a buffer's size and halve at the end.
std::uint64_t staging_lane::next_chunk_bytes(std::uint64_t done, std::uint64_t bytes) {
  const std::uint64_t left = bytes - done;
  const std::uint64_t ramp = std::min(done, left / 2) / 4096 * 4096;
  return std::min({std::max(ramp, min_chunk_bytes), buffer_bytes, left});
}

void staging_lane::copy(void* to, const void* from, std::uint64_t bytes, int stream_device,
                        native_stream stream) {
  const std::lock_guard lock(m_mutex);
  const native_event begin = stream_device == m_from ? m_begin_from : m_begin_to;
  m_driver.record(stream_device, begin, stream);
  m_driver.wait(m_from, m_to_host_stream, begin);
  for (std::uint64_t done = 0, chunk_bytes = 0; done < bytes; done += chunk_bytes) {
    buffer& buffer_slot = m_buffers[m_next++ % buffer_count];
    chunk_bytes = next_chunk_bytes(done, bytes);
    const device_copy to_host{buffer_slot.memory, static_cast<const std::byte*>(from) + done, chunk_bytes};
    const device_copy from_host{static_cast<std::byte*>(to) + done, buffer_slot.memory, chunk_bytes};
    if (buffer_slot.was_used) m_driver.wait(m_from, m_to_host_stream, buffer_slot.drained);
    m_driver.copy(m_from, {&to_host, 1}, m_to_host_stream);
    m_driver.record(m_from, buffer_slot.filled, m_to_host_stream);
    m_driver.wait(m_to, m_from_host_stream, buffer_slot.filled);
    m_driver.copy(m_to, {&from_host, 1}, m_from_host_stream);
    m_driver.record(m_to, buffer_slot.drained, m_from_host_stream);
    buffer_slot.was_used = true;
  }
  m_driver.record(m_to, m_end, m_from_host_stream);
  m_driver.wait(stream_device, stream, m_end);
}

}  // namespace isthmus
