// Memory of the stand-in devices: shared memory of this machine, so that processes really share what they
// export. It knows the owner of each address and which devices may access it. An access that would fault on a
// device fails here as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace standin {

struct ipc_address {  // contents of a 64-byte interprocess handle
  std::int64_t pid;
  std::int32_t file;
  std::int32_t device;
  std::uint64_t bytes;
};

class device_memory {
 public:
  static device_memory& get();

  // Plain memory, as allocated by cudaMalloc and cudaHostAlloc.
  int allocate(void** pointer, std::size_t bytes, int device);
  int allocate_host(void** pointer, std::size_t bytes);
  int register_host(void* pointer, std::size_t bytes);  // of the program
  int unregister_host(void* pointer);
  int free(void* pointer);
  int ipc_export(ipc_address* address, void* pointer);
  int ipc_open(void** pointer, const ipc_address& address);

  // Physical memory with a handle, separate from addresses.
  int create(std::uint64_t* handle, std::size_t bytes, int device);
  int release(std::uint64_t handle);
  int export_file(int* file, std::uint64_t handle);
  int import_file(std::uint64_t* handle, int file);
  int reserve(void** address, std::size_t bytes);
  int unreserve(void* address, std::size_t bytes);
  int map(void* address, std::size_t bytes, std::uint64_t handle);
  int unmap(void* address, std::size_t bytes);
  int set_access(void* address, std::size_t bytes, int device, bool allowed);

  // Returns true if the devices can access each other's memory (all can, unless a test changes it).
  bool connected(int device, int peer);
  void connect(int device, int peer, bool connected);
  int enable_peer(int device, int peer);

  // Returns true if a copy on `device` may access the whole range. Plain memory of any device may be copied,
  // as in real drivers.
  bool reachable(int device, const void* pointer, std::size_t bytes);
  // Returns true if a write or wait may access it directly: plain memory of another device requires enable_peer.
  bool direct(int device, const void* pointer, std::size_t bytes);
  int owner(const void* pointer);  // -1: pinned host memory; -2: unknown

  std::size_t capacity(int device);
  void set_capacity(std::size_t bytes);
  std::size_t bytes_in_use(int device);
  std::size_t live();  // allocations of every kind, mappings and reservations
  void set_sharing(bool descriptors) { m_descriptors = descriptors; }
  bool has_descriptors() const { return m_descriptors; }

 private:
  enum class block_kind { plain, host, registered, imported, mapped };
  struct block {
    block_kind kind;
    std::size_t bytes;
    int device;
    int file;  // plain memory only, for exports
    std::uint64_t physical;
    std::set<int> allowed;  // mapped memory only
  };
  struct physical {
    int file;
    std::size_t bytes;
    int device;
    bool imported;
    int references;  // the handle and its mappings
  };
  const block* find(const void* pointer, std::size_t bytes) const;
  void release_reference(std::map<std::uint64_t, physical>::iterator entry);
  bool fits(int device, std::size_t bytes) const;

  std::mutex m_mutex;
  std::map<const std::byte*, block> m_blocks;
  std::map<const std::byte*, std::size_t> m_reserved;
  std::map<std::uint64_t, physical> m_physical;
  std::map<int, std::size_t> m_used;
  std::set<std::pair<int, int>> m_disconnected, m_enabled;
  std::uint64_t m_next = 1;
  std::size_t m_capacity = std::size_t{64} << 30;
  bool m_descriptors = true;
};

// Sets the bytes to zero. Whole pages are released and read as zeros until the next write, because the library clears
// staging areas of hundreds of MiB of which tests use little.
void clear(void* pointer, std::size_t bytes);

}  // namespace standin
