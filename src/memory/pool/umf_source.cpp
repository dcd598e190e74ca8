#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "device/driver.hpp"
#include "device/level_zero/level_zero_driver.hpp"
#include "memory/pool/memory_source.hpp"
#include "memory/pool/umf_library.hpp"

namespace isthmus {
namespace {

struct library_state {
  umf_library table{};
  std::string reason;

  library_state() {
    // The PyPI wheel installs it in <environment>/lib, two folders above site-packages. In a SYCL program it is
    // already loaded, and the dynamic linker finds it by name.
    const library_search_request request{.variable = "ISTHMUS_UMF_LIBRARY",
                                         .names = {"libumf.so.1"},
                                         .wheel_folders = {"../.."},
                                         .system_folders = {}};
    const dynamic_library library = dynamic_library::open(request, reason);
    if (!library) {
      reason = "UMF could not be loaded (pip install umf): " + reason;
      return;
    }
    symbol_loader loader(library, "umf");
#define ISTHMUS_UMF_REQUIRED(member, name, result, arguments) loader.load_required(table.member, #name);
#define ISTHMUS_UMF_OPTIONAL(member, name, result, arguments) loader.load_optional(table.member, #name);
    ISTHMUS_UMF_FUNCTIONS(ISTHMUS_UMF_REQUIRED, ISTHMUS_UMF_OPTIONAL)
#undef ISTHMUS_UMF_REQUIRED
#undef ISTHMUS_UMF_OPTIONAL
    table.path = library.path();
    if (!loader.first_missing().empty())
      reason = table.path + " lacks " + loader.first_missing() + " (install UMF 1.0 or newer)";
  }
};

}  // namespace

const umf_library* umf_library::get(std::string& reason) {
  static const library_state& instance_storage =
      *new library_state;  // never destroyed: blocks may be freed after static destruction
  reason = instance_storage.reason;
  return instance_storage.reason.empty() ? &instance_storage.table : nullptr;
}

// Blocks from UMF providers: operating system memory, CUDA, Level Zero.

namespace {

constexpr std::uint64_t alignment = 256;
constexpr std::int32_t ze_out_of_device_memory = 0x70000003;  // ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY

class umf_source final : public memory_source {
 public:
  umf_source(const umf_library& umf, isthmus_device device, umf::provider provider)
      : m_umf(umf), m_device(device), m_provider(provider) {}
  ~umf_source() override { m_umf.provider_destroy(m_provider); }
  umf_source(const umf_source&) = delete;
  umf_source& operator=(const umf_source&) = delete;

  void* allocate(std::uint64_t bytes) override {
    void* pointer = nullptr;
    const umf::result result = m_umf.provider_alloc(m_provider, bytes, alignment, &pointer);
    if (result != umf::result::success || pointer == nullptr) fail(result, "allocate", bytes);
    return pointer;
  }

  void free(void* pointer, std::uint64_t bytes) override {
    const umf::result result = m_umf.provider_free(m_provider, pointer, bytes);
    if (result != umf::result::success) fail(result, "free", bytes);
  }

 private:
  [[noreturn]] void fail(umf::result result, const char* action, std::uint64_t bytes) const {
    const char* text = nullptr;
    std::int32_t native = 0;
    if (result == umf::result::provider_specific) m_umf.provider_last_native_error(m_provider, &text, &native);
    // UMF's operating system provider reports only that its call failed. For an anonymous mapping, the cause is
    // lack of memory or address space.
    const bool is_out_of_memory = result == umf::result::out_of_host_memory ||
                                  native == ze_out_of_device_memory || native == umf::os_allocation_failed;
    throw make_error(is_out_of_memory ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                     fmt::format("UMF could not {} {} bytes on {}: UMF result {}{}{}", action, bytes,
                                 format_device(m_device), static_cast<int>(result),
                                 text != nullptr && *text != '\0' ? ", " : "", text != nullptr ? text : ""),
                     "", native);
  }

  const umf_library& m_umf;
  isthmus_device m_device;
  umf::provider m_provider;
};

// Creates a UMF provider from parameters that `describe` fills. UMF copies the parameters.
template <typename Describe>
std::unique_ptr<memory_source> open_provider(const umf_library& umf, isthmus_device device,
                                             umf::result (*create)(umf::parameters*),
                                             umf::result (*destroy)(umf::parameters),
                                             const umf::provider_functions* operations, Describe&& describe,
                                             std::string& reason) {
  umf::parameters params = nullptr;
  umf::provider provider = nullptr;
  umf::result result = create(&params);
  if (result == umf::result::success) {
    result = describe(params);
    if (result == umf::result::success) result = umf.provider_create(operations, params, &provider);
    destroy(params);
  }
  if (result != umf::result::success) {
    reason = fmt::format("UMF's provider for {} failed with UMF result {}", format_device(device),
                         static_cast<int>(result));
    return nullptr;
  }
  return std::make_unique<umf_source>(umf, device, provider);
}

std::unique_ptr<memory_source> open_os(const umf_library& umf, isthmus_device device, std::string& reason) {
  return open_provider(
      umf, device, umf.os_params_create, umf.os_params_destroy, umf.os_ops(),
      [](umf::parameters) { return umf::result::success; }, reason);
}

std::unique_ptr<memory_source> open_cuda(const umf_library& umf, isthmus_device device, std::string& reason) {
  device_driver* driver = device_driver::get(ISTHMUS_PLATFORM_CUDA, reason);
  if (driver == nullptr) return nullptr;
  void* context = nullptr;
  try {
    context = driver->native_context(device.ordinal);
  } catch (const error& failure) {
    reason = failure.what();
    return nullptr;
  }
  return open_provider(
      umf, device, umf.cuda_params_create, umf.cuda_params_destroy, umf.cuda_ops(),
      [&](umf::parameters params) {
        umf::result result = umf.cuda_set_context(params, context);
        if (result == umf::result::success) result = umf.cuda_set_device(params, device.ordinal);
        if (result == umf::result::success) result = umf.cuda_set_memory_type(params, umf::device_memory_type);
        return result;
      },
      reason);
}

// UMF requests relaxed limits itself for blocks that exceed the device's default maximum.
std::unique_ptr<memory_source> open_level_zero(const umf_library& umf, isthmus_device device,
                                               void* native_context, std::string& reason) {
  auto* driver = static_cast<level_zero_driver*>(device_driver::get(ISTHMUS_PLATFORM_LEVEL_ZERO, reason));
  if (driver == nullptr) return nullptr;
  if (device.ordinal >= driver->device_count()) {
    reason = fmt::format("platform level_zero has {} devices", driver->device_count());
    return nullptr;
  }
  void* const context = native_context != nullptr ? native_context : driver->native_context(device.ordinal);
  return open_provider(
      umf, device, umf.level_zero_params_create, umf.level_zero_params_destroy, umf.level_zero_ops(),
      [&](umf::parameters params) {
        umf::result result = umf.level_zero_set_context(params, context);
        if (result == umf::result::success)
          result = umf.level_zero_set_device(params, driver->native_device(device.ordinal));
        if (result == umf::result::success)
          result = umf.level_zero_set_memory_type(params, umf::device_memory_type);
        return result;
      },
      reason);
}

}  // namespace

std::unique_ptr<memory_source> open_umf_source(isthmus_device device, void* native_context,
                                               std::string& reason) {
  const umf_library* umf = umf_library::get(reason);
  if (umf == nullptr) return nullptr;
  switch (device.platform) {
    case ISTHMUS_PLATFORM_HOST: return open_os(*umf, device, reason);
    case ISTHMUS_PLATFORM_CUDA: return open_cuda(*umf, device, reason);
    case ISTHMUS_PLATFORM_LEVEL_ZERO: return open_level_zero(*umf, device, native_context, reason);
    case ISTHMUS_PLATFORM_HIP:
    case ISTHMUS_PLATFORM_OPENCL:
    case ISTHMUS_PLATFORM_COUNT: break;
  }
  reason = fmt::format("UMF has no provider for platform {}", isthmus_platform_name(device.platform));
  return nullptr;
}

}  // namespace isthmus
