// Blocks from the platform's allocation call: the driver on devices, an anonymous mapping on the host.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "device/driver.hpp"
#include "device/level_zero/level_zero_driver.hpp"
#include "memory/pool/memory_source.hpp"

namespace isthmus {
namespace {

class driver_source final : public memory_source {
 public:
  driver_source(device_driver& driver, int device) : m_driver(driver), m_device(device) {}
  void* allocate(std::uint64_t bytes) override { return m_driver.allocate(m_device, bytes); }
  void free(void* pointer, std::uint64_t) override { m_driver.free(m_device, pointer); }
  void* allocate_mapped(std::uint64_t bytes) override { return m_driver.allocate_mapped(m_device, bytes); }
  void* resize_mapped(void* pointer, std::uint64_t, std::uint64_t bytes) override {
    return m_driver.resize_mapped(m_device, pointer, bytes);
  }
  void free_mapped(void* pointer, std::uint64_t) override { m_driver.free_mapped(m_device, pointer); }

 private:
  device_driver& m_driver;
  int m_device;
};

// Allocates in the program's Level Zero context.
class level_zero_source final : public memory_source {
 public:
  level_zero_source(level_zero_driver& driver, int device, void* context)
      : m_driver(driver), m_device(device), m_context(static_cast<_ze_context_handle_t*>(context)) {}
  void* allocate(std::uint64_t bytes) override {
    return m_driver.allocate_in_context(m_context, m_device, bytes);
  }
  void free(void* pointer, std::uint64_t) override { m_driver.free_in_context(m_context, m_device, pointer); }

 private:
  level_zero_driver& m_driver;
  int m_device;
  _ze_context_handle_t* m_context;
};

class mapping_source final : public memory_source {
 public:
  void* allocate(std::uint64_t bytes) override {
    void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) fail(errno, "mmap", bytes);
    return pointer;
  }

  void free(void* pointer, std::uint64_t bytes) override {
    if (munmap(pointer, bytes) != 0) fail(errno, "munmap", bytes);
  }

  void* allocate_mapped(std::uint64_t bytes) override { return allocate(bytes); }
  void* resize_mapped(void* pointer, std::uint64_t old_bytes, std::uint64_t bytes) override {
    void* new_address = mremap(pointer, old_bytes, bytes, MREMAP_MAYMOVE);
    // Newer kernels return EINVAL if the size exceeds the address space. No other argument can be invalid here.
    if (new_address == MAP_FAILED) fail(errno == EINVAL ? ENOMEM : errno, "mremap", bytes);
    return new_address;
  }
  void free_mapped(void* pointer, std::uint64_t bytes) override { free(pointer, bytes); }

 private:
  [[noreturn]] static void fail(int code, const char* call, std::uint64_t bytes) {
    throw make_error(code == ENOMEM ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("{} of {} bytes failed: {}", call, bytes, std::strerror(code)), "", code);
  }
};

[[noreturn]] void fail_mapped() {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "has no growable blocks",
                   "use isthmus_memory_resize_device on an ordinary block, which copies its contents");
}

}  // namespace

void* memory_source::allocate_mapped(std::uint64_t) { fail_mapped(); }
void* memory_source::resize_mapped(void*, std::uint64_t, std::uint64_t) { fail_mapped(); }
void memory_source::free_mapped(void*, std::uint64_t) { fail_mapped(); }

std::unique_ptr<memory_source> open_direct_source(isthmus_device device, void* native_context,
                                                  std::string& reason) {
  if (device.platform == ISTHMUS_PLATFORM_HOST) return std::make_unique<mapping_source>();
  device_driver* driver = device_driver::get(device.platform, reason);
  if (driver == nullptr) return nullptr;
  const int count = driver->device_count();
  if (device.ordinal >= count) {
    reason = fmt::format("platform {} has {} devices", isthmus_platform_name(device.platform), count);
    return nullptr;
  }
  if (device.platform == ISTHMUS_PLATFORM_LEVEL_ZERO)
    return std::make_unique<level_zero_source>(static_cast<level_zero_driver&>(*driver), device.ordinal,
                                               native_context);
  return std::make_unique<driver_source>(*driver, device.ordinal);
}

}  // namespace isthmus
