// Shared blocks of the GPU driver, which other devices and processes can map.
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "device/gpu/gpu_driver.hpp"

namespace isthmus::gpu {
namespace {

// The contents of a shared_handle.
struct block_address {
  sharing_method method;
  std::int32_t descriptor;
  std::int64_t pid;
  std::uint64_t bytes;
  ipc_handle handle;
};
static_assert(sizeof(block_address) <= sizeof(shared_handle));

}  // namespace

allocation_properties gpu_driver::properties(int device) const {
  allocation_properties request{};
  request.type = type_pinned;
  request.handle_types = handle_file_descriptor;
  request.location = {location_device, device};
  return request;
}

sharing_method gpu_driver::preferred_sharing(int device) {
  return m_api->has_virtual_memory(device) ? sharing_method::descriptor : sharing_method::handle;
}

std::uint64_t gpu_driver::granularity(int device) {
  if (!m_api->has_virtual_memory(device)) return 2u << 20;  // the native allocators also round up to this size
  const allocation_properties request = properties(device);
  std::size_t bytes = 0;
  check(m_api->mem_granularity(&bytes, &request, granularity_recommended), ISTHMUS_HERE,
        "querying the granularity", device);
  return bytes;
}

void gpu_driver::add_block(void* pointer, const shared_block& block) {
  const std::lock_guard lock(m_mutex);
  m_blocks[pointer] = block;
}

gpu_driver::shared_block gpu_driver::find_block(const void* pointer, const char* location, const char* action) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(pointer);
  if (entry == m_blocks.end())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, location,
                     fmt::format("{}: {} is not a shared block of {}", action, pointer, m_api->title()),
                     "pass a block that allocate_shared or import_shared returned and that was not freed");
  return entry->second;
}

gpu_driver::shared_block gpu_driver::remove_block(int device, void* pointer, const char* location,
                                                  const char* action) {
  const shared_block entry = find_block(pointer, location, action);
  if (entry.device != device)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, location,
                     fmt::format("{}: {} belongs to device {}, not {}", action, pointer, entry.device, device),
                     "free a block with the device that it was allocated for");
  const std::lock_guard lock(m_mutex);
  m_blocks.erase(pointer);
  return entry;
}

void* gpu_driver::map_physical(int device, allocation physical, std::uint64_t bytes) {
  void* address = nullptr;
  check(m_api->mem_reserve(&address, bytes, 0, nullptr, 0), ISTHMUS_HERE,
        fmt::format("reserving {} bytes of addresses", bytes), device);
  const access_description access{{location_device, device}, access_read_write};
  int code = m_api->mem_map(address, bytes, 0, physical, 0);
  if (code == success) {
    code = m_api->mem_set_access(address, bytes, &access, 1);
    if (code != success) (void)m_api->mem_unmap(address, bytes);
  }
  if (code != success) (void)m_api->mem_unreserve(address, bytes);
  check(code, ISTHMUS_HERE, fmt::format("mapping {} bytes", bytes), device);
  return address;
}

void gpu_driver::unmap_physical(void* pointer, const shared_block& mapped) {
  check(m_api->mem_unmap(pointer, mapped.bytes), ISTHMUS_HERE, "unmapping a block", mapped.device);
  check(m_api->mem_unreserve(pointer, mapped.bytes), ISTHMUS_HERE, "releasing addresses", mapped.device);
  check(m_api->mem_release(mapped.physical), ISTHMUS_HERE, "releasing a block", mapped.device);
}

void* gpu_driver::create_physical(int device, std::uint64_t bytes, allocation* physical) {
  const allocation_properties request = properties(device);
  check(m_api->mem_create(physical, bytes, &request, 0), ISTHMUS_HERE, fmt::format("creating {} bytes", bytes),
        device);
  try {
    return map_physical(device, *physical, bytes);
  } catch (const error&) {
    (void)m_api->mem_release(*physical);
    throw;
  }
}

void gpu_driver::clear(int device, void* pointer, std::uint64_t bytes) {
  native_stream stream = nullptr;
  {
    const std::lock_guard lock(m_mutex);
    native_stream& own = m_own_streams[static_cast<std::size_t>(device)];
    if (own == nullptr) own = create_stream(device, stream_priority::normal);
    stream = own;
  }
  fill(device, pointer, 0, bytes, stream);
  synchronize(device, stream);
}

void* gpu_driver::allocate_shared(int device, std::uint64_t bytes, sharing_method method) {
  const current_device current(*this, device);
  const std::uint64_t step = granularity(device);
  if (bytes > ~std::uint64_t{0} - step)
    check(out_of_memory, ISTHMUS_HERE, fmt::format("allocating {} bytes", bytes), device);
  shared_block block{device, round_up(bytes, step), method, false, 0, -1};
  void* pointer = nullptr;
  switch (method) {
    case sharing_method::descriptor: pointer = create_physical(device, block.bytes, &block.physical); break;
    case sharing_method::handle:
      check(m_api->allocate_coherent(&pointer, block.bytes), ISTHMUS_HERE,
            fmt::format("allocating {} bytes", block.bytes), device);
      break;
  }
  add_block(pointer, block);
  try {
    clear(device, pointer, block.bytes);
  } catch (const error&) {
    free_shared(device, pointer);
    throw;
  }
  return pointer;
}

void gpu_driver::free_shared(int device, void* pointer) {
  const current_device current(*this, device);
  const shared_block freed_block = remove_block(device, pointer, ISTHMUS_HERE, "freeing a shared block");
  if (freed_block.descriptor >= 0) ::close(freed_block.descriptor);
  switch (freed_block.method) {
    case sharing_method::descriptor: return unmap_physical(pointer, freed_block);
    case sharing_method::handle:
      return check(m_api->free(pointer), ISTHMUS_HERE, fmt::format("freeing {}", pointer), device);
  }
}

void gpu_driver::enable_peer(int device, int peer) {
  if (device == peer) return;
  const current_device current(*this, device);
  const int code = m_api->enable_peer(peer);
  if (code != peer_already_enabled)
    check(code, ISTHMUS_HERE, fmt::format("enabling access to device {}", peer), device);
  const std::lock_guard lock(m_mapped_mutex);
  if (!m_peers.emplace(device, peer).second) return;
  for (const auto& [pointer, block] : m_mapped)
    if (block.device == peer)
      check(grant_access(pointer, block.runs, device), ISTHMUS_HERE,
            fmt::format("giving access to a block of device {}", peer), device);
}

void gpu_driver::allow_access(void* pointer, int peer) {
  const shared_block shared = find_block(pointer, ISTHMUS_HERE, "allowing access to a block");
  switch (shared.method) {
    case sharing_method::handle: return enable_peer(peer, shared.device);
    case sharing_method::descriptor: break;
  }
  const current_device current(*this, peer);  // the peer's context must exist before it can get access
  const access_description access{{location_device, peer}, access_read_write};
  check(m_api->mem_set_access(pointer, shared.bytes, &access, 1), ISTHMUS_HERE,
        fmt::format("giving access to a block of device {}", shared.device), peer);
}

shared_handle gpu_driver::export_shared(void* pointer) {
  shared_block shared = find_block(pointer, ISTHMUS_HERE, "exporting a block");
  const current_device current(*this, shared.device);
  block_address address{shared.method, -1, getpid(), shared.bytes, {}};
  switch (shared.method) {
    case sharing_method::handle:
      check(m_api->ipc_export(&address.handle, pointer), ISTHMUS_HERE, "exporting a block", shared.device);
      break;
    case sharing_method::descriptor:
      if (shared.descriptor < 0) {
        check(m_api->mem_export(&shared.descriptor, shared.physical, handle_file_descriptor, 0), ISTHMUS_HERE,
              "exporting a block", shared.device);
        add_block(pointer, shared);
      }
      address.descriptor = shared.descriptor;
      break;
  }
  shared_handle handle{};
  std::memcpy(handle.bytes.data(), &address, sizeof address);
  return handle;
}

void gpu_driver::end_export(void* pointer) {
  shared_block shared = find_block(pointer, ISTHMUS_HERE, "ending the export of a block");
  if (const int descriptor = std::exchange(shared.descriptor, -1); descriptor >= 0) {
    ::close(descriptor);
    add_block(pointer, shared);
  }
}

void* gpu_driver::import_descriptor(int device, std::int64_t pid, int descriptor, std::uint64_t bytes,
                                    allocation* physical) {
  const int own = duplicate_descriptor(pid, descriptor);
  // The driver expects the descriptor number itself, cast to a pointer.
  const int code = m_api->mem_import(physical, reinterpret_cast<void*>(static_cast<std::intptr_t>(own)),
                                     handle_file_descriptor);
  ::close(own);
  check(code, ISTHMUS_HERE, fmt::format("importing a block of process {}", pid), device);
  try {
    return map_physical(device, *physical, bytes);
  } catch (const error&) {
    (void)m_api->mem_release(*physical);
    throw;
  }
}

void* gpu_driver::import_shared(int device, const shared_handle& handle) {
  block_address address{};
  std::memcpy(&address, handle.bytes.data(), sizeof address);
  const current_device current(*this, device);
  shared_block block{device, address.bytes, address.method, true, 0, -1};
  void* pointer = nullptr;
  switch (address.method) {
    case sharing_method::descriptor:
      pointer = import_descriptor(device, address.pid, address.descriptor, address.bytes, &block.physical);
      break;
    case sharing_method::handle:
      check(m_api->ipc_open(&pointer, address.handle, ipc_lazy_peer_access), ISTHMUS_HERE,
            fmt::format("opening a block of process {}", address.pid), device);
      break;
  }
  add_block(pointer, block);
  return pointer;
}

void gpu_driver::release_import(int device, void* pointer) {
  const current_device current(*this, device);
  const shared_block freed_block = remove_block(device, pointer, ISTHMUS_HERE, "releasing an imported block");
  switch (freed_block.method) {
    case sharing_method::descriptor: return unmap_physical(pointer, freed_block);
    case sharing_method::handle:
      return check(m_api->ipc_close(pointer), ISTHMUS_HERE, "closing an imported block", device);
  }
}

}  // namespace isthmus::gpu
