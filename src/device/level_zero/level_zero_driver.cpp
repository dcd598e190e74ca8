// Level Zero: devices, memory, sharing. Streams and events are in level_zero_stream.cpp.
#include "device/level_zero/level_zero_driver.hpp"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "device/level_zero/level_zero_api.hpp"

namespace isthmus {
namespace {

constexpr std::size_t alignment = 256;

// The contents of a shared_handle. The first int of Intel's handle is a descriptor of the owning process.
struct portable_handle {
  std::int64_t pid;
  ze_ipc_mem_handle_t native;
};
static_assert(sizeof(portable_handle) <= sizeof(shared_handle));

[[noreturn]] void unsupported(const char* location, const std::string& problem, const std::string& hint = {}) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, location, "Level Zero: " + problem, hint);
}

// Returns the first driver with GPUs, and its GPUs.
ze_driver_handle_t find_gpus(const level_zero_api& api, std::vector<ze_device_handle_t>& gpus) {
  std::uint32_t count = 0;
  level_zero_api::check(api.driver_get(&count, nullptr), ISTHMUS_HERE, "zeDriverGet");
  std::vector<ze_driver_handle_t> drivers(count);
  if (count > 0) level_zero_api::check(api.driver_get(&count, drivers.data()), ISTHMUS_HERE, "zeDriverGet");
  for (ze_driver_handle_t driver : drivers) {
    std::uint32_t devices = 0;
    level_zero_api::check(api.device_get(driver, &devices, nullptr), ISTHMUS_HERE, "zeDeviceGet");
    std::vector<ze_device_handle_t> handles(devices);
    if (devices > 0)
      level_zero_api::check(api.device_get(driver, &devices, handles.data()), ISTHMUS_HERE, "zeDeviceGet");
    for (ze_device_handle_t device : handles) {
      ze_device_properties_t properties{};
      properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
      level_zero_api::check(api.device_get_properties(device, &properties), ISTHMUS_HERE,
                            "zeDeviceGetProperties");
      if (properties.type == ZE_DEVICE_TYPE_GPU) gpus.push_back(device);
    }
    if (!gpus.empty()) return driver;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<level_zero_driver> level_zero_driver::load(std::string& reason) {
  std::unique_ptr<level_zero_api> api = level_zero_api::load(reason);
  if (!api) return nullptr;
  const ze_result_t init_result = api->init(0);
  if (init_result != ZE_RESULT_SUCCESS) {
    reason = fmt::format("zeInit failed: {}", level_zero_api::text(init_result));
    return nullptr;
  }
  std::vector<ze_device_handle_t> gpus;
  ze_driver_handle_t driver = find_gpus(*api, gpus);
  if (driver == nullptr) {
    reason = "Level Zero found no GPU on this machine";
    return nullptr;
  }
  std::unique_ptr<level_zero_driver> result(new level_zero_driver(std::move(api), driver));
  for (ze_device_handle_t gpu : gpus) result->add_device(gpu);
  return result;
}

level_zero_driver::level_zero_driver(std::unique_ptr<level_zero_api> api, ze_driver_handle_t driver)
    : m_api(std::move(api)), m_driver(driver) {
  const ze_context_desc_t description{ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
  level_zero_api::check(m_api->context_create(driver, &description, &m_context), ISTHMUS_HERE,
                        "zeContextCreate");
}

level_zero_driver::~level_zero_driver() = default;

void level_zero_driver::add_device(ze_device_handle_t device) {
  ze_device_properties_t properties{};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  level_zero_api::check(m_api->device_get_properties(device, &properties), ISTHMUS_HERE,
                        "zeDeviceGetProperties");
  std::uint32_t count = 0;
  level_zero_api::check(m_api->device_get_command_queue_group_properties(device, &count, nullptr), ISTHMUS_HERE,
                        "zeDeviceGetCommandQueueGroupProperties");
  std::vector<ze_command_queue_group_properties_t> groups(count);
  for (auto& group : groups) group.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES;
  level_zero_api::check(m_api->device_get_command_queue_group_properties(device, &count, groups.data()),
                        ISTHMUS_HERE, "zeDeviceGetCommandQueueGroupProperties");
  // A copy-only group is a dedicated engine, separate from the compute units, so it is preferred
  // over other groups.
  const auto is_copy_only = [](const ze_command_queue_group_properties_t& group) {
    return (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY) != 0 &&
           (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) == 0;
  };
  std::uint32_t group_index = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (is_copy_only(groups[i]) && (group_index == count || !is_copy_only(groups[group_index])))
      group_index = i;
    if (group_index == count && (groups[i].flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY) != 0)
      group_index = i;
  }
  if (group_index == count)
    unsupported(ISTHMUS_HERE, fmt::format("device {} has no engine for copies", properties.name));
  m_devices.push_back(
      {device, properties.maxMemAllocSize, group_index, groups[group_index].maxMemoryFillPatternSize});
}

const level_zero_driver::device_state& level_zero_driver::state(int device) const {
  if (device < 0 || device >= static_cast<int>(m_devices.size()))
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("Level Zero device {} does not exist; there are {}", device, m_devices.size()),
                     "pass the ordinal of a GPU");
  return m_devices[static_cast<std::size_t>(device)];
}

ze_device_handle_t level_zero_driver::native_device(int device) const { return state(device).handle; }

std::string level_zero_driver::version() {
  ze_driver_properties_t properties{};
  properties.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES;
  level_zero_api::check(m_api->driver_get_properties(m_driver, &properties), ISTHMUS_HERE,
                        "zeDriverGetProperties");
  ze_api_version_t api{};
  level_zero_api::check(m_api->driver_get_api_version(m_driver, &api), ISTHMUS_HERE, "zeDriverGetApiVersion");
  return fmt::format("Level Zero {}.{}, driver {}", ZE_MAJOR_VERSION(api), ZE_MINOR_VERSION(api),
                     properties.driverVersion);
}

std::string level_zero_driver::name(int device) {
  ze_device_properties_t properties{};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  level_zero_api::check(m_api->device_get_properties(state(device).handle, &properties), ISTHMUS_HERE,
                        "zeDeviceGetProperties");
  return properties.name;
}

std::string level_zero_driver::bus_id(int device) {
  ze_pci_ext_properties_t properties{};
  properties.stype = ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES;
  if (m_api->device_pci_get_properties_ext == nullptr)
    unsupported(ISTHMUS_HERE, "this loader has no zeDevicePciGetPropertiesExt",
                "install a newer Level Zero loader");
  level_zero_api::check(m_api->device_pci_get_properties_ext(state(device).handle, &properties), ISTHMUS_HERE,
                        "zeDevicePciGetPropertiesExt");
  const auto& address = properties.address;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", address.domain, address.bus, address.device,
                     address.function);
}

device_memory_info level_zero_driver::memory_info(int) {
  unsupported(ISTHMUS_HERE,
              "free memory is available only from the system management interface, which Isthmus does not use");
}

bool level_zero_driver::can_access_peer(int device, int peer) {
  if (device == peer) return true;
  ze_bool_t is_accessible = 0;
  level_zero_api::check(m_api->device_can_access_peer(state(device).handle, state(peer).handle, &is_accessible),
                        ISTHMUS_HERE, "zeDeviceCanAccessPeer");
  return is_accessible != 0;
}

int level_zero_driver::owner_of(const void* pointer) {
  if (pointer == nullptr) return -1;
  ze_memory_allocation_properties_t properties{};
  properties.stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES;
  ze_device_handle_t owner = nullptr;
  level_zero_api::check(m_api->mem_get_alloc_properties(m_context, pointer, &properties, &owner), ISTHMUS_HERE,
                        "zeMemGetAllocProperties");
  if (properties.type != ZE_MEMORY_TYPE_DEVICE) return -1;
  for (std::size_t i = 0; i < m_devices.size(); ++i) {
    if (m_devices[i].handle == owner) return static_cast<int>(i);
  }
  return -1;
}

// ---- memory ---------------------------------------------------------------------------------------------

void* level_zero_driver::allocate_in_context(ze_context_handle_t context, int device, std::uint64_t bytes) {
  const device_state& own = state(device);
  ze_relaxed_allocation_limits_exp_desc_t relaxed_limits{};
  relaxed_limits.stype = ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC;
  relaxed_limits.flags = ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE;
  ze_device_mem_alloc_desc_t description{};
  description.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
  // Blocks larger than the device's usual maximum (often 4 GiB) must be requested with relaxed limits.
  if (bytes > own.max_allocation_bytes) description.pNext = &relaxed_limits;
  void* pointer = nullptr;
  level_zero_api::check(m_api->mem_alloc_device(context != nullptr ? context : m_context, &description, bytes,
                                                alignment, own.handle, &pointer),
                        ISTHMUS_HERE,
                        fmt::format("zeMemAllocDevice of {} bytes on level_zero:{}", bytes, device));
  return pointer;
}

void level_zero_driver::free_in_context(ze_context_handle_t context, int device, void* pointer) {
  level_zero_api::check(m_api->mem_free(context != nullptr ? context : m_context, pointer), ISTHMUS_HERE,
                        fmt::format("zeMemFree on level_zero:{}", device));
}

void* level_zero_driver::allocate(int device, std::uint64_t bytes) {
  return allocate_in_context(m_context, device, bytes);
}
void level_zero_driver::free(int device, void* pointer) { free_in_context(m_context, device, pointer); }

void* level_zero_driver::allocate_host(std::uint64_t bytes) {
  const ze_host_mem_alloc_desc_t description{ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, nullptr, 0};
  void* pointer = nullptr;
  level_zero_api::check(m_api->mem_alloc_host(m_context, &description, bytes, alignment, &pointer),
                        ISTHMUS_HERE, fmt::format("zeMemAllocHost of {} bytes", bytes));
  return pointer;
}

void level_zero_driver::free_host(void* pointer) {
  level_zero_api::check(m_api->mem_free(m_context, pointer), ISTHMUS_HERE, "zeMemFree of host memory");
}

// ---- sharing --------------------------------------------------------------------------------------------

std::uint64_t level_zero_driver::granularity(int) { return std::uint64_t{64} << 10U; }  // Intel's device page
sharing_method level_zero_driver::preferred_sharing(int) { return sharing_method::handle; }

void* level_zero_driver::allocate_shared(int device, std::uint64_t bytes, sharing_method method) {
  if (method != sharing_method::handle)
    unsupported(ISTHMUS_HERE, "memory is shared by interprocess handles, not as descriptors of physical memory",
                "share the block by handle");
  const std::uint64_t page = granularity(device);
  const std::uint64_t rounded = (bytes + page - 1) / page * page;
  void* pointer = allocate(device, rounded);
  const native_stream stream = create_stream(device, stream_priority::normal);
  try {
    fill(device, pointer, 0, rounded, stream);
    synchronize(device, stream);
  } catch (const error&) {
    destroy_stream(device, stream);
    free(device, pointer);
    throw;
  }
  destroy_stream(device, stream);
  const std::lock_guard lock(m_mutex);
  m_shared[pointer] = device;
  return pointer;
}

void level_zero_driver::free_shared(int device, void* pointer) {
  {
    const std::lock_guard lock(m_mutex);
    const auto entry = m_shared.find(pointer);
    if (entry == m_shared.end() || entry->second != device)
      throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                       fmt::format("free_shared: {} is not a shared block of level_zero:{}", pointer, device),
                       "pass a block that allocate_shared returned for this device, once");
    m_shared.erase(entry);
  }
  free(device, pointer);
}

void level_zero_driver::enable_peer(int device, int peer) {
  // Access does not have to be enabled. Check for support, because without it, older runtimes corrupt data
  // instead of failing.
  if (!can_access_peer(device, peer))
    unsupported(ISTHMUS_HERE, fmt::format("device {} cannot access device {}", device, peer),
                "stage through host memory");
}

void level_zero_driver::allow_access(void* pointer, int peer) {
  const int owner = owner_of(pointer);
  if (owner < 0)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("allow_access: {} is not device memory of Level Zero", pointer));
  enable_peer(peer, owner);
  void* begin = nullptr;
  std::size_t bytes = 0;
  level_zero_api::check(m_api->mem_get_address_range(m_context, pointer, &begin, &bytes), ISTHMUS_HERE,
                        "zeMemGetAddressRange");
  level_zero_api::check(m_api->context_make_memory_resident(m_context, state(peer).handle, begin, bytes),
                        ISTHMUS_HERE, "zeContextMakeMemoryResident");
}

shared_handle level_zero_driver::export_shared(void* pointer) {
  portable_handle portable{getpid(), {}};
  level_zero_api::check(m_api->mem_get_ipc_handle(m_context, pointer, &portable.native), ISTHMUS_HERE,
                        "zeMemGetIpcHandle");
  shared_handle handle{};
  std::memcpy(handle.bytes.data(), &portable, sizeof portable);
  return handle;
}

void level_zero_driver::end_export(void* pointer) {
  // Before Level Zero 1.6, a handle is released with its block.
  if (m_api->mem_put_ipc_handle == nullptr) return;
  ze_ipc_mem_handle_t native{};
  level_zero_api::check(m_api->mem_get_ipc_handle(m_context, pointer, &native), ISTHMUS_HERE,
                        "zeMemGetIpcHandle");
  level_zero_api::check(m_api->mem_put_ipc_handle(m_context, native), ISTHMUS_HERE, "zeMemPutIpcHandle");
}

void* level_zero_driver::import_shared(int device, const shared_handle& handle) {
  portable_handle portable{};
  std::memcpy(&portable, handle.bytes.data(), sizeof portable);
  int descriptor = -1;
  if (portable.pid != getpid()) {
    int peer_descriptor = -1;
    std::memcpy(&peer_descriptor, portable.native.data, sizeof peer_descriptor);
    descriptor = duplicate_descriptor(portable.pid, peer_descriptor);
    std::memcpy(portable.native.data, &descriptor, sizeof descriptor);
  }
  void* pointer = nullptr;
  const ze_result_t result =
      m_api->mem_open_ipc_handle(m_context, state(device).handle, portable.native, 0, &pointer);
  if (descriptor >= 0) close(descriptor);  // the mapping keeps the memory alive
  level_zero_api::check(result, ISTHMUS_HERE, fmt::format("zeMemOpenIpcHandle on level_zero:{}", device));
  return pointer;
}

void level_zero_driver::release_import(int device, void* pointer) {
  level_zero_api::check(m_api->mem_close_ipc_handle(m_context, pointer), ISTHMUS_HERE,
                        fmt::format("zeMemCloseIpcHandle on level_zero:{}", device));
}

}  // namespace isthmus
