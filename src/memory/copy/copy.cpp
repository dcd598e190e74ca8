#include "memory/copy/copy.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/driver.hpp"
#include "device/owned.hpp"

namespace isthmus {

// ---- staging through the host ----

// Staged copies from one device to another through pinned host buffers. Each side has a stream, so that one
// chunk is copied to the host while the previous one is copied to the destination.
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

// ---- copies ----

namespace {

bool is_host(isthmus_device device) { return device.platform == ISTHMUS_PLATFORM_HOST; }

error unsupported(const char* location, const std::string& message, const std::string& hint) {
  return make_error(ISTHMUS_ERROR_UNSUPPORTED, location, "memory_copy: " + message, hint);
}

device_driver& driver_of(isthmus_platform platform) {
  std::string reason;
  if (device_driver* const driver = device_driver::get(platform, reason)) return *driver;
  throw unsupported(ISTHMUS_HERE, fmt::format("{}: {}", isthmus_platform_name(platform), reason),
                    "copy with the functions of the platform");
}

void check_ordinal(device_driver& driver, const char* argument, isthmus_device device) {
  if (device.ordinal < 0 || device.ordinal >= driver.device_count())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: {}.ordinal = {} must be in [0, {})", argument, device.ordinal,
                                 driver.device_count()),
                     "pass the device number that the platform uses");
}

void check_platforms(isthmus_device destination_device, isthmus_device source_device) {
  if (destination_device.platform != source_device.platform)
    throw unsupported(ISTHMUS_HERE,
                      fmt::format("from {} to {}: no driver copies between platforms",
                                  format_device(source_device), format_device(destination_device)),
                      "copy to the host first");
}

// Peer access by pair of devices. The driver is queried only at the first copy of each pair.
class peer_access_table {
 public:
  bool can_copy_directly(device_driver& driver, isthmus_platform platform, int device, int peer) {
    if (std::cmp_greater_equal(device, max_devices) || std::cmp_greater_equal(peer, max_devices))
      return query_driver(driver, device, peer);
    const auto index =
        (static_cast<std::size_t>(platform) * max_devices + static_cast<std::size_t>(device)) * max_devices +
        static_cast<std::size_t>(peer);
    std::atomic<peer_access>& entry = m_access[index];
    if (entry.load(std::memory_order_acquire) == peer_access::unknown)
      entry.store(query_driver(driver, device, peer) ? peer_access::allowed : peer_access::denied,
                  std::memory_order_release);
    return entry.load(std::memory_order_acquire) == peer_access::allowed;
  }

 private:
  enum class peer_access : std::uint8_t { unknown, allowed, denied };
  static constexpr std::size_t max_devices = 32;

  static bool query_driver(device_driver& driver, int device, int peer) {
    if (!driver.can_access_peer(device, peer)) return false;
    driver.enable_peer(device, peer);
    return true;
  }

  std::array<std::atomic<peer_access>, ISTHMUS_PLATFORM_COUNT * max_devices * max_devices> m_access{};
};

peer_access_table& access_table() {
  static auto& table = *new peer_access_table;
  return table;
}

void check_ranges(const copy_request& request) {
  if (request.destination == nullptr || request.source == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: {} is NULL, but bytes = {}",
                                 request.destination == nullptr ? "destination" : "source", request.bytes),
                     "NULL is allowed with bytes == 0 only");
  const auto destination = reinterpret_cast<std::uintptr_t>(request.destination);
  const auto source = reinterpret_cast<std::uintptr_t>(request.source);
  const std::uint64_t distance = destination > source ? destination - source : source - destination;
  if (request.bytes > ~std::uintptr_t{0} - std::max(destination, source))
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_copy: bytes = {} reaches past the end of the address space", request.bytes),
        "check for a negative number or an overflow");
  if (distance != 0 && distance < request.bytes)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: destination = {} and source = {} overlap in {} of {} bytes",
                                 request.destination, request.source, request.bytes - distance, request.bytes),
                     "pass disjoint or identical ranges, or copy through a third buffer");
}

void copy_on_host(const copy_request& request) {
  if (request.stream != nullptr || request.done_event != nullptr || !request.wait_events.empty())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     "memory_copy: stream and events must be NULL, because both buffers are on the host",
                     "pass NULL: a copy on the host is complete on return");
  if (request.bytes > 0 && request.destination != request.source)
    std::memcpy(request.destination, request.source, request.bytes);
}

isthmus_copy_path path_of(device_driver& driver, const copy_request& request, int stream_device) {
  const bool is_between_devices = !is_host(request.destination_device) && !is_host(request.source_device) &&
                                  request.destination_device.ordinal != request.source_device.ordinal;
  if (!is_between_devices) {
    if (request.path == ISTHMUS_COPY_STAGED &&
        (is_host(request.destination_device) || is_host(request.source_device)))
      throw unsupported(ISTHMUS_HERE, "path = STAGED, but one of the buffers is on the host",
                        "pass ISTHMUS_COPY_AUTO");
    return request.path == ISTHMUS_COPY_STAGED ? ISTHMUS_COPY_STAGED : ISTHMUS_COPY_DIRECT;
  }
  if (request.path == ISTHMUS_COPY_STAGED) return ISTHMUS_COPY_STAGED;
  const int peer = stream_device == request.destination_device.ordinal ? request.source_device.ordinal
                                                                       : request.destination_device.ordinal;
  if (access_table().can_copy_directly(driver, request.destination_device.platform, stream_device, peer))
    return ISTHMUS_COPY_DIRECT;
  if (request.path == ISTHMUS_COPY_DIRECT)
    throw unsupported(
        ISTHMUS_HERE,
        fmt::format("path = DIRECT, but {}:{} cannot access the memory of device {}",
                    isthmus_platform_name(request.destination_device.platform), stream_device, peer),
        "pass ISTHMUS_COPY_AUTO to stage the copy through the host");
  return ISTHMUS_COPY_STAGED;
}

}  // namespace

void copy_memory(const copy_request& request) {
  if (request.bytes > 0) check_ranges(request);
  if (is_host(request.destination_device) && is_host(request.source_device)) return copy_on_host(request);
  const isthmus_device accelerator =
      is_host(request.destination_device) ? request.source_device : request.destination_device;
  if (!is_host(request.destination_device) && !is_host(request.source_device))
    check_platforms(request.destination_device, request.source_device);
  device_driver& driver = driver_of(accelerator.platform);
  if (!is_host(request.destination_device))
    check_ordinal(driver, "destination_device", request.destination_device);
  if (!is_host(request.source_device)) check_ordinal(driver, "source_device", request.source_device);
  const bool uses_source_queue =
      is_host(request.destination_device) || (request.push && !is_host(request.source_device));
  const int device = uses_source_queue ? request.source_device.ordinal : request.destination_device.ordinal;
  const isthmus_copy_path path = path_of(driver, request, device);
  const bool has_data = request.bytes > 0 && request.destination != request.source;
  if (has_data && path == ISTHMUS_COPY_STAGED && driver.is_capturing(device, request.stream))
    throw unsupported(ISTHMUS_HERE,
                      "the copy is staged through the host, but the stream is being captured into a graph",
                      "capture only copies between devices with peer access");
  for (void* event : request.wait_events) driver.wait(device, request.stream, event);
  if (has_data && path == ISTHMUS_COPY_DIRECT) {
    const device_copy request_on_device{request.destination, request.source, request.bytes};
    driver.copy(device, {&request_on_device, 1}, request.stream);
  } else if (has_data) {
    staging_lane::get(driver, accelerator.platform, request.source_device.ordinal,
                      request.destination_device.ordinal)
        .copy(request.destination, request.source, request.bytes, device, request.stream);
  }
  if (request.done_event != nullptr) driver.record(device, request.done_event, request.stream);
}

}  // namespace isthmus
