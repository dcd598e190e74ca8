#include "memory/pool/memory_source.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/driver.hpp"
#include "device/level_zero/level_zero_driver.hpp"

namespace isthmus {

// ---- direct ----
// Blocks from the platform's allocation call: the driver on devices, an anonymous mapping on the host.

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

// ---- registered ----
// Blocks from an allocator that a front end registered. The allocator is a C table of functions, because the
// core does not depend on SYCL.

namespace {

class registered_source final : public memory_source {
 public:
  registered_source(isthmus_device device, std::string name, const isthmus_memory_provider& functions)
      : m_device(device), m_name(std::move(name)), m_functions(functions) {}

  void* allocate(std::uint64_t bytes) override {
    void* pointer = nullptr;
    const int code = m_functions.allocate(m_functions.context, bytes, &pointer);
    if (code != 0 || pointer == nullptr)
      throw make_error(
          ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE,
          fmt::format("{} could not allocate {} bytes on {}", m_name, bytes, format_device(m_device)), "",
          code);
    return pointer;
  }

  void free(void* pointer, std::uint64_t bytes) override {
    const int code = m_functions.free(m_functions.context, pointer);
    if (code != 0)
      throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                       fmt::format("{} could not free {} bytes on {}", m_name, bytes, format_device(m_device)),
                       "", code);
  }

 private:
  isthmus_device m_device;
  std::string m_name;
  isthmus_memory_provider m_functions;
};

struct registry {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, isthmus_memory_provider> functions;  // key: device and name

  static registry& instance() {
    static registry& instance_storage = *new registry;
    return instance_storage;
  }
};

}  // namespace

void register_source(isthmus_device device, const isthmus_memory_provider& provider) {
  registry& all = registry::instance();
  const std::lock_guard lock(all.mutex);
  isthmus_memory_provider stored_provider = provider;
  stored_provider.name = nullptr;  // owned by the caller; the key has a copy
  all.functions.try_emplace({format_device(device), provider.name}, stored_provider);
}

std::unique_ptr<memory_source> open_registered_source(isthmus_device device, const std::string& name,
                                                      std::string& reason) {
  registry& all = registry::instance();
  const std::lock_guard lock(all.mutex);
  const auto position = all.functions.find({format_device(device), name});
  if (position != all.functions.end())
    return std::make_unique<registered_source>(device, name, position->second);
  reason = fmt::format("provider {} is not registered for {} (isthmus/sycl/memory.hpp registers it)", name,
                       format_device(device));
  return nullptr;
}

}  // namespace isthmus
