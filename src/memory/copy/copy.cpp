#include "memory/copy/copy.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "device/driver.hpp"
#include "memory/copy/staging_lane.hpp"

namespace isthmus {
namespace {

bool is_host(isthmus_device device) { return device.platform == ISTHMUS_PLATFORM_HOST; }

std::string format_device(isthmus_device device) {
  return fmt::format("{}:{}", isthmus_platform_name(device.platform), device.ordinal);
}

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

isthmus_copy_path automatic_path(isthmus_device destination_device, isthmus_device source_device) {
  if (is_host(destination_device) || is_host(source_device)) return ISTHMUS_COPY_DIRECT;
  check_platforms(destination_device, source_device);
  device_driver& driver = driver_of(destination_device.platform);
  check_ordinal(driver, "destination_device", destination_device);
  check_ordinal(driver, "source_device", source_device);
  const bool is_same_device = destination_device.ordinal == source_device.ordinal;
  return is_same_device || access_table().can_copy_directly(driver, destination_device.platform,
                                                            destination_device.ordinal, source_device.ordinal)
             ? ISTHMUS_COPY_DIRECT
             : ISTHMUS_COPY_STAGED;
}

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
