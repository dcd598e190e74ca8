// Blocks from an allocator that a front end registered. The allocator is a C table of functions, because the
// core does not depend on SYCL.
#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "memory/pool/memory_source.hpp"

namespace isthmus {
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

std::string format_device(isthmus_device device) {
  return fmt::format("{}:{}", isthmus_platform_name(device.platform), device.ordinal);
}

}  // namespace isthmus
