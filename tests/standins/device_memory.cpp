#include "device_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "machine.hpp"

namespace standin {
namespace {

constexpr std::size_t page = 4096;

std::size_t whole_pages(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

// The file name contains the device, for importing processes.
int make_file(std::size_t bytes, int device) {
  const int file = memfd_create(("standin-device-" + std::to_string(device)).c_str(), MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

int device_of_file(int file) {
  char name[128] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  int device = -1;
  if (readlink(link.c_str(), name, sizeof name - 1) < 0 ||
      std::sscanf(name, "/memfd:standin-device-%d", &device) != 1)
    return -1;
  return device;
}

void* view(int file, std::size_t bytes) {
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return mapping == MAP_FAILED ? nullptr : mapping;
}

const std::byte* as_bytes(const void* pointer) { return static_cast<const std::byte*>(pointer); }

}  // namespace

device_memory& device_memory::get() {
  static auto* const only = new device_memory;
  return *only;
}

bool device_memory::fits(int device, std::size_t bytes) const {
  const auto entry = m_used.find(device);
  const std::size_t used_bytes = entry == m_used.end() ? 0 : entry->second;
  return bytes <= m_capacity - std::min(m_capacity, used_bytes);
}

int device_memory::allocate(void** pointer, std::size_t bytes, int device) {
  *pointer = nullptr;
  if (bytes == 0) return success;
  const std::lock_guard lock(m_mutex);
  if (!fits(device, bytes)) return out_of_memory;
  const int file = make_file(whole_pages(bytes), device);
  void* const mapping = file < 0 ? nullptr : view(file, whole_pages(bytes));
  if (mapping == nullptr) {
    if (file >= 0) close(file);
    return out_of_memory;
  }
  m_blocks[as_bytes(mapping)] = {block_kind::plain, bytes, device, file, 0, {}};
  m_used[device] += bytes;
  *pointer = mapping;
  return success;
}

int device_memory::allocate_host(void** pointer, std::size_t bytes) {
  *pointer = std::aligned_alloc(page, whole_pages(bytes));
  if (*pointer == nullptr) return out_of_memory;
  const std::lock_guard lock(m_mutex);
  m_blocks[as_bytes(*pointer)] = {block_kind::host, bytes, -1, -1, 0, {}};
  return success;
}

int device_memory::register_host(void* pointer, std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  const bool is_new =
      m_blocks.try_emplace(as_bytes(pointer), block{block_kind::registered, bytes, -1, -1, 0, {}}).second;
  return is_new ? success : invalid_value;
}

int device_memory::unregister_host(void* pointer) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(as_bytes(pointer));
  if (entry == m_blocks.end() || entry->second.kind != block_kind::registered) return invalid_value;
  m_blocks.erase(entry);
  return success;
}

int device_memory::free(void* pointer) {
  if (pointer == nullptr) return success;
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(as_bytes(pointer));
  if (entry == m_blocks.end() || entry->second.kind == block_kind::mapped ||
      entry->second.kind == block_kind::registered)
    return invalid_value;
  const block freed = entry->second;
  m_blocks.erase(entry);
  if (freed.kind == block_kind::host) {
    std::free(pointer);
    return success;
  }
  if (freed.kind == block_kind::plain) m_used[freed.device] -= freed.bytes;
  munmap(pointer, whole_pages(freed.bytes));
  close(freed.file);
  return success;
}

int device_memory::ipc_export(ipc_address* address, void* pointer) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(as_bytes(pointer));
  if (entry == m_blocks.end() || entry->second.kind != block_kind::plain) return invalid_value;
  *address = {getpid(), entry->second.file, entry->second.device, entry->second.bytes};
  return success;
}

int device_memory::ipc_open(void** pointer, const ipc_address& address) {
  if (address.pid == getpid()) return invalid_value;  // as on a device: a process cannot open its own handle
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return invalid_handle;
  void* const mapping = view(file, whole_pages(address.bytes));
  if (mapping == nullptr) {
    close(file);
    return out_of_memory;
  }
  const std::lock_guard lock(m_mutex);
  m_blocks[as_bytes(mapping)] = {block_kind::imported, address.bytes, address.device, file, 0, {}};
  *pointer = mapping;
  return success;
}

int device_memory::create(std::uint64_t* handle, std::size_t bytes, int device) {
  const std::lock_guard lock(m_mutex);
  if (!fits(device, bytes)) return out_of_memory;
  const int file = make_file(bytes, device);
  if (file < 0) return out_of_memory;
  *handle = m_next++;
  m_physical[*handle] = {file, bytes, device, false, 1};
  m_used[device] += bytes;
  return success;
}

void device_memory::release_reference(std::map<std::uint64_t, physical>::iterator entry) {
  if (--entry->second.references > 0) return;
  if (!entry->second.imported) m_used[entry->second.device] -= entry->second.bytes;
  close(entry->second.file);
  m_physical.erase(entry);
}

int device_memory::release(std::uint64_t handle) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_physical.find(handle);
  if (entry == m_physical.end()) return invalid_value;
  release_reference(entry);
  return success;
}

int device_memory::export_file(int* file, std::uint64_t handle) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_physical.find(handle);
  if (entry == m_physical.end()) return invalid_value;
  *file = fcntl(entry->second.file, F_DUPFD_CLOEXEC, 0);
  return *file < 0 ? invalid_handle : success;
}

int device_memory::import_file(std::uint64_t* handle, int file) {
  const int device = device_of_file(file);
  struct stat status{};
  if (device < 0 || fstat(file, &status) != 0) return invalid_value;
  const std::lock_guard lock(m_mutex);
  *handle = m_next++;
  m_physical[*handle] = {fcntl(file, F_DUPFD_CLOEXEC, 0), static_cast<std::size_t>(status.st_size), device,
                         true, 1};
  return success;
}

int device_memory::reserve(void** address, std::size_t bytes) {
  void* const mapping = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return out_of_memory;
  const std::lock_guard lock(m_mutex);
  m_reserved[as_bytes(mapping)] = bytes;
  *address = mapping;
  return success;
}

int device_memory::unreserve(void* address, std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_reserved.find(as_bytes(address));
  const auto mapped = m_blocks.lower_bound(as_bytes(address));
  if (entry == m_reserved.end() || entry->second != bytes ||
      (mapped != m_blocks.end() && mapped->first < as_bytes(address) + bytes))
    return invalid_value;
  m_reserved.erase(entry);
  munmap(address, bytes);
  return success;
}

int device_memory::map(void* address, std::size_t bytes, std::uint64_t handle) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_physical.find(handle);
  const auto mapping = m_reserved.upper_bound(as_bytes(address));
  if (entry == m_physical.end() || mapping == m_reserved.begin() || bytes != entry->second.bytes)
    return invalid_value;
  const auto& [begin, reserved] = *std::prev(mapping);
  const auto next = m_blocks.lower_bound(as_bytes(address));
  if (as_bytes(address) + bytes > begin + reserved || find(address, 0) != nullptr ||
      (next != m_blocks.end() && next->first < as_bytes(address) + bytes))
    return invalid_value;
  if (mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, entry->second.file, 0) == MAP_FAILED)
    return out_of_memory;
  ++entry->second.references;
  m_blocks[as_bytes(address)] = {block_kind::mapped, bytes, entry->second.device, -1, handle, {}};
  return success;
}

int device_memory::unmap(void* address, std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(as_bytes(address));
  if (entry == m_blocks.end() || entry->second.kind != block_kind::mapped || entry->second.bytes != bytes)
    return invalid_value;
  release_reference(m_physical.find(entry->second.physical));
  m_blocks.erase(entry);
  mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return success;
}

int device_memory::set_access(void* address, std::size_t bytes, int device, bool allowed) {
  const std::lock_guard lock(m_mutex);
  const auto entry = m_blocks.find(as_bytes(address));
  if (entry == m_blocks.end() || entry->second.kind != block_kind::mapped || entry->second.bytes != bytes)
    return invalid_value;
  const int owner = entry->second.device;
  if (device != owner && m_disconnected.contains({device, owner})) return invalid_device;
  if (allowed)
    entry->second.allowed.insert(device);
  else
    entry->second.allowed.erase(device);
  const int protection = entry->second.allowed.empty() ? PROT_NONE : PROT_READ | PROT_WRITE;
  return mprotect(address, bytes, protection) == 0 ? success : invalid_value;
}

bool device_memory::connected(int device, int peer) {
  const std::lock_guard lock(m_mutex);
  return device != peer && !m_disconnected.contains({device, peer});
}

void device_memory::connect(int device, int peer, bool connected) {
  const std::lock_guard lock(m_mutex);
  if (connected)
    m_disconnected.erase({device, peer});
  else
    m_disconnected.insert({device, peer});
}

int device_memory::enable_peer(int device, int peer) {
  const std::lock_guard lock(m_mutex);
  if (device == peer || m_disconnected.contains({device, peer})) return invalid_device;
  return m_enabled.insert({device, peer}).second ? success : peer_already_enabled;
}

const device_memory::block* device_memory::find(const void* pointer, std::size_t bytes) const {
  auto next_block = m_blocks.upper_bound(as_bytes(pointer));
  if (next_block == m_blocks.begin()) return nullptr;
  --next_block;
  const auto distance = static_cast<std::size_t>(as_bytes(pointer) - next_block->first);
  return distance < next_block->second.bytes && bytes <= next_block->second.bytes - distance
             ? &next_block->second
             : nullptr;
}

// Consecutive mappings form one range if all of them are accessible.
bool device_memory::reachable(int device, const void* pointer, std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  const block* entry = find(pointer, 0);
  if (entry == nullptr) return true;  // memory of the program
  while (entry != nullptr && entry->kind == block_kind::mapped && entry->allowed.contains(device)) {
    if (find(pointer, bytes) != nullptr) return true;
    const std::byte* const end = std::prev(m_blocks.upper_bound(as_bytes(pointer)))->first + entry->bytes;
    bytes -= static_cast<std::size_t>(end - as_bytes(pointer));
    pointer = end;
    entry = find(pointer, 0);
  }
  return entry != nullptr && entry->kind != block_kind::mapped && find(pointer, bytes) != nullptr;
}

bool device_memory::direct(int device, const void* pointer, std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  const block* const entry = find(pointer, bytes);
  if (entry == nullptr) return false;
  switch (entry->kind) {
    case block_kind::host:
    case block_kind::registered: return true;
    case block_kind::mapped: return entry->allowed.contains(device);
    case block_kind::imported: return true;
    case block_kind::plain: return entry->device == device || m_enabled.contains({device, entry->device});
  }
  return false;
}

int device_memory::owner(const void* pointer) {
  const std::lock_guard lock(m_mutex);
  const block* const entry = find(pointer, 0);
  return entry == nullptr ? -2 : entry->device;
}

std::size_t device_memory::capacity(int) {
  const std::lock_guard lock(m_mutex);
  return m_capacity;
}

void device_memory::set_capacity(std::size_t bytes) {
  const std::lock_guard lock(m_mutex);
  m_capacity = bytes;
}

std::size_t device_memory::bytes_in_use(int device) {
  const std::lock_guard lock(m_mutex);
  return m_used[device];
}

std::size_t device_memory::live() {
  const std::lock_guard lock(m_mutex);
  return m_blocks.size() + m_physical.size() + m_reserved.size();
}

void clear(void* pointer, std::size_t bytes) {
  auto* const begin = static_cast<std::byte*>(pointer);
  const std::size_t head = std::min(bytes, (page - reinterpret_cast<std::uintptr_t>(begin) % page) % page);
  const std::size_t inner = (bytes - head) / page * page;
  if (inner == 0 || madvise(begin + head, inner, MADV_REMOVE) != 0) {  // pinned host memory, for example
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, head);
  std::memset(begin + head + inner, 0, bytes - head - inner);
}

}  // namespace standin
