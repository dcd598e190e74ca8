#include "memory/heap/device_heap_source.hpp"

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

namespace isthmus {
namespace {

using piece_key = std::array<std::uint64_t, 2>;  // random: also says whether a piece is of this process

struct device_address {
  piece_key key;
  std::array<char, 40> bus_id;  // ordinals of other processes may mean other devices
  shared_handle handle;
};
static_assert(sizeof(device_address) <= sizeof(piece_address));

class device_piece final : public heap_piece {
 public:
  device_piece(device_driver& driver, int device, void* pointer, bool imported)
      : m_driver(driver), m_device(device), m_pointer(pointer), m_imported(imported) {}
  // A destructor can't throw, and at the end of a process the driver may be gone already.
  ~device_piece() override {
    try {
      if (m_imported)
        m_driver.release_import(m_device, m_pointer);
      else
        m_driver.free_shared(m_device, m_pointer);
    } catch (const error& failure) {
      log(log_level::warning, "symmetric heap: {}", failure.what());
    }
  }
  device_piece(const device_piece&) = delete;
  device_piece& operator=(const device_piece&) = delete;

  void* data() const override { return m_pointer; }
  void end_export() override { m_driver.end_export(m_pointer); }
  int device() const { return m_device; }

 private:
  device_driver& m_driver;
  int m_device;
  void* m_pointer;
  bool m_imported;
};

// Pieces made in this process: its other ranks use the same mapping.
struct local_pieces {
  std::mutex mutex;
  std::map<piece_key, std::weak_ptr<device_piece>> by_key;
};
local_pieces& local() {
  static auto* const pieces = new local_pieces;
  return *pieces;
}

class device_source final : public heap_source {
 public:
  device_source(device_driver& driver, int device)
      : m_driver(driver),
        m_device(device),
        m_sharing(driver.best_sharing(device)),
        m_granularity(driver.granularity(device)) {}

  std::uint64_t granularity() override { return m_granularity; }
  new_piece create(std::uint64_t bytes) override;
  std::shared_ptr<heap_piece> open(const piece_address& address, std::string& reason) override;
  bool can_fall_back() const override { return m_sharing != sharing::handle; }
  void fall_back() override { m_sharing = sharing::handle; }
  bool outlives_peers() const override { return m_sharing == sharing::handle; }
  void clear(void* pointer, std::uint64_t bytes) override;

 private:
  bool reaches(const char* bus_id, std::string& reason);
  std::shared_ptr<heap_piece> import(const device_address& where, std::string& reason);

  device_driver& m_driver;
  int m_device;
  sharing m_sharing;
  std::uint64_t m_granularity;
  owned_stream m_stream;  // made at the first use
};

new_piece device_source::create(std::uint64_t bytes) {
  void* const pointer = m_driver.allocate_shared(m_device, bytes, m_sharing);
  const auto piece = std::make_shared<device_piece>(m_driver, m_device, pointer, false);
  device_address where{};
  where.handle = m_driver.export_shared(pointer);
  copy_text(where.bus_id.data(), where.bus_id.size(), m_driver.bus_id(m_device));
  if (getrandom(&where.key, sizeof where.key, 0) != sizeof where.key)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, "getrandom failed", {}, errno);
  new_piece made{piece, {}};
  std::memcpy(made.address.bytes.data(), &where, sizeof where);
  const std::lock_guard lock(local().mutex);
  std::erase_if(local().by_key, [](const auto& entry) { return entry.second.expired(); });
  local().by_key[where.key] = piece;
  return made;
}

// A device that this process doesn't see (CUDA_VISIBLE_DEVICES) may still be reached: the import decides.
bool device_source::reaches(const char* bus_id, std::string& reason) {
  for (int peer = 0; peer < m_driver.device_count(); ++peer) {
    if (m_driver.bus_id(peer) != bus_id || m_driver.can_access_peer(m_device, peer)) continue;
    reason = fmt::format("device {} ({}) cannot access the memory of {}", m_device, m_driver.bus_id(m_device),
                         bus_id);
    return false;
  }
  return true;
}

std::shared_ptr<heap_piece> device_source::open(const piece_address& address, std::string& reason) {
  device_address where{};
  std::memcpy(&where, address.bytes.data(), sizeof where);
  std::shared_ptr<device_piece> here;
  {
    const std::lock_guard lock(local().mutex);
    const auto found = local().by_key.find(where.key);
    if (found != local().by_key.end()) here = found->second.lock();
  }
  if (!reaches(where.bus_id.data(), reason)) return nullptr;
  if (here == nullptr) return import(where, reason);
  if (here->device() != m_device) m_driver.allow_access(here->data(), m_device);
  return here;
}

// The last way of sharing failed, too (containers of their own, say): the ranks go on without this mapping.
std::shared_ptr<heap_piece> device_source::import(const device_address& where, std::string& reason) {
  try {
    return std::make_shared<device_piece>(m_driver, m_device, m_driver.import_shared(m_device, where.handle),
                                          true);
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

}  // namespace

std::unique_ptr<heap_source> make_device_heap_source(isthmus_device device) {
  std::string reason;
  device_driver* const driver = device_driver::get(device.platform, reason);
  if (driver == nullptr)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("the symmetric heap on {}: {}", isthmus_platform_name(device.platform), reason),
        "allocate with the platform's own functions");
  if (device.ordinal < 0 || device.ordinal >= driver->device_count())
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("the symmetric heap on {}: device {} must be below {}",
                    isthmus_platform_name(device.platform), device.ordinal, driver->device_count()),
        "the ordinal is the platform's own numbering");
  return std::make_unique<device_source>(*driver, device.ordinal);
}

}  // namespace isthmus
