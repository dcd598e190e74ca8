#include "memory/heap/heap_source.hpp"

#include <isthmus/isthmus.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.hpp"
#include "base/log.hpp"
#include "device/owned.hpp"
#include "memory/segment.hpp"

namespace isthmus {
namespace {

// ---- host: shared memory segments ----

class host_segment final : public heap_segment {
 public:
  explicit host_segment(std::shared_ptr<shared_segment> segment) : m_segment(std::move(segment)) {}
  void* data() const override { return m_segment->data(); }
  void end_export() override { m_segment->close_descriptor(); }

 private:
  std::shared_ptr<shared_segment> m_segment;
};

class host_source final : public heap_source {
 public:
  std::uint64_t granularity() override { return 0; }
  new_heap_segment create(std::uint64_t bytes) override {
    auto segment = shared_segment::create(bytes, segment_use::user);
    const segment_address address_data = segment->address();
    new_heap_segment result{std::make_shared<host_segment>(std::move(segment)), {}};
    static_assert(sizeof address_data <= sizeof result.address);
    std::memcpy(result.address.bytes.data(), &address_data, sizeof address_data);
    return result;
  }
  std::shared_ptr<heap_segment> open(const heap_segment_address& address, std::string&) override {
    segment_address address_data{};
    std::memcpy(&address_data, address.bytes.data(), sizeof address_data);
    return std::make_shared<host_segment>(shared_segment::open(address_data, segment_use::user));
  }
  bool can_fall_back() const override { return false; }
  void fall_back() override {}
  bool must_outlive_peers() const override { return false; }
  void clear(void* pointer, std::uint64_t bytes) override { std::memset(pointer, 0, bytes); }
};

// ---- devices: shared blocks of the driver ----

using segment_key = std::array<std::uint64_t, 2>;  // random; also identifies segments of this process

struct device_address {
  segment_key key;
  std::array<char, 40> bus_id;  // device ordinals can differ between processes
  shared_handle handle;
};
static_assert(sizeof(device_address) <= sizeof(heap_segment_address));

class device_segment final : public heap_segment {
 public:
  device_segment(device_driver& driver, int device, void* pointer, bool is_imported)
      : m_driver(driver), m_device(device), m_pointer(pointer), m_is_imported(is_imported) {}
  // Errors are only logged: a destructor must not throw, and at process exit the driver may
  // already be unloaded.
  ~device_segment() override {
    try {
      if (m_is_imported)
        m_driver.release_import(m_device, m_pointer);
      else
        m_driver.free_shared(m_device, m_pointer);
    } catch (const error& failure) {
      log(log_level::warning, "symmetric heap: {}", failure.what());
    }
  }
  device_segment(const device_segment&) = delete;
  device_segment& operator=(const device_segment&) = delete;

  void* data() const override { return m_pointer; }
  void end_export() override { m_driver.end_export(m_pointer); }
  int device() const { return m_device; }

 private:
  device_driver& m_driver;
  int m_device;
  void* m_pointer;
  bool m_is_imported;
};

// Segments that this process created. Its other ranks share the mapping.
struct local_segments {
  std::mutex mutex;
  std::map<segment_key, std::weak_ptr<device_segment>> by_key;
};
local_segments& local() {
  static auto* const segments = new local_segments;
  return *segments;
}

class device_source final : public heap_source {
 public:
  device_source(device_driver& driver, int device)
      : m_driver(driver),
        m_device(device),
        m_sharing(driver.preferred_sharing(device)),
        m_granularity(driver.granularity(device)) {}

  std::uint64_t granularity() override { return m_granularity; }
  new_heap_segment create(std::uint64_t bytes) override;
  std::shared_ptr<heap_segment> open(const heap_segment_address& address, std::string& reason) override;
  bool can_fall_back() const override { return m_sharing != sharing_method::handle; }
  void fall_back() override { m_sharing = sharing_method::handle; }
  bool must_outlive_peers() const override { return m_sharing == sharing_method::handle; }
  void clear(void* pointer, std::uint64_t bytes) override;

 private:
  bool can_reach(const char* bus_id, std::string& reason);
  std::shared_ptr<heap_segment> import_segment(const device_address& address_data, std::string& reason);

  device_driver& m_driver;
  int m_device;
  sharing_method m_sharing;
  std::uint64_t m_granularity;
  owned_stream m_stream;  // created on first use
};

new_heap_segment device_source::create(std::uint64_t bytes) {
  void* const pointer = m_driver.allocate_shared(m_device, bytes, m_sharing);
  const auto segment = std::make_shared<device_segment>(m_driver, m_device, pointer, false);
  device_address address_data{};
  address_data.handle = m_driver.export_shared(pointer);
  copy_text(address_data.bus_id.data(), address_data.bus_id.size(), m_driver.bus_id(m_device));
  if (getrandom(&address_data.key, sizeof address_data.key, 0) != sizeof address_data.key)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, "getrandom failed", {}, errno);
  new_heap_segment result{segment, {}};
  std::memcpy(result.address.bytes.data(), &address_data, sizeof address_data);
  const std::lock_guard lock(local().mutex);
  std::erase_if(local().by_key, [](const auto& entry) { return entry.second.expired(); });
  local().by_key[address_data.key] = segment;
  return result;
}

// A device that is not visible to this process (CUDA_VISIBLE_DEVICES) may still be accessible:
// the import decides.
bool device_source::can_reach(const char* bus_id, std::string& reason) {
  for (int peer = 0; peer < m_driver.device_count(); ++peer) {
    if (m_driver.bus_id(peer) != bus_id || m_driver.can_access_peer(m_device, peer)) continue;
    reason = fmt::format("device {} ({}) cannot access the memory of {}", m_device, m_driver.bus_id(m_device),
                         bus_id);
    return false;
  }
  return true;
}

std::shared_ptr<heap_segment> device_source::open(const heap_segment_address& address, std::string& reason) {
  device_address address_data{};
  std::memcpy(&address_data, address.bytes.data(), sizeof address_data);
  std::shared_ptr<device_segment> local_segment;
  {
    const std::lock_guard lock(local().mutex);
    const auto position = local().by_key.find(address_data.key);
    if (position != local().by_key.end()) local_segment = position->second.lock();
  }
  if (!can_reach(address_data.bus_id.data(), reason)) return nullptr;
  if (local_segment == nullptr) return import_segment(address_data, reason);
  if (local_segment->device() != m_device) m_driver.allow_access(local_segment->data(), m_device);
  return local_segment;
}

// If the last sharing method also fails (for example in separate containers), the ranks continue
// without this mapping.
std::shared_ptr<heap_segment> device_source::import_segment(const device_address& address_data,
                                                            std::string& reason) {
  try {
    return std::make_shared<device_segment>(m_driver, m_device,
                                            m_driver.import_shared(m_device, address_data.handle), true);
  } catch (const error& failure) {
    if (can_fall_back()) throw;
    reason = failure.what();
    return nullptr;
  }
}

void device_source::clear(void* pointer, std::uint64_t bytes) {
  if (m_stream == nullptr) m_stream = owned_stream(m_driver, m_device);
  m_driver.fill(m_device, pointer, 0, bytes, m_stream);
  m_driver.synchronize(m_device, m_stream);
}

// Throws error (UNSUPPORTED) if the driver of the platform is not available.
std::unique_ptr<heap_source> make_device_heap_source(isthmus_device device) {
  std::string reason;
  device_driver* const driver = device_driver::get(device.platform, reason);
  if (driver == nullptr)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("the symmetric heap on {}: {}", isthmus_platform_name(device.platform), reason),
        "allocate with the functions of the platform");
  if (device.ordinal < 0 || device.ordinal >= driver->device_count())
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("the symmetric heap on {}: device.ordinal = {} must be below {}",
                    isthmus_platform_name(device.platform), device.ordinal, driver->device_count()),
        "pass the device number that the platform uses");
  return std::make_unique<device_source>(*driver, device.ordinal);
}

}  // namespace

std::unique_ptr<heap_source> heap_source::make(isthmus_device device) {
  if (device.platform == ISTHMUS_PLATFORM_HOST) return std::make_unique<host_source>();
  return make_device_heap_source(device);
}

}  // namespace isthmus
