// The device driver for CUDA and HIP: one implementation on top of the function table of either platform.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/location.hpp"
#include "device/gpu/gpu_api.hpp"

namespace isthmus::gpu {

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step) {
  return (bytes + step - 1) / step * step;
}

class gpu_driver final : public device_driver {
 public:
  gpu_driver(std::unique_ptr<gpu_api> api, int devices);

  std::string version() override;
  int device_count() override { return m_devices; }
  std::string name(int device) override;
  std::string bus_id(int device) override;
  device_memory_info memory_info(int device) override;
  bool can_access_peer(int device, int peer) override;
  int owner_of(const void* pointer) override;
  void* native_context(int device) override;

  void* allocate(int device, std::uint64_t bytes) override;
  void free(int device, void* pointer) override;
  void* allocate_host(std::uint64_t bytes) override;
  void free_host(void* pointer) override;
  void register_host(void* pointer, std::uint64_t bytes) override;

  native_stream create_stream(int device, stream_priority priority) override;
  void destroy_stream(int device, native_stream stream) override;
  void synchronize(int device, native_stream stream) override;
  bool is_capturing(int device, native_stream stream) override;
  bool is_blocking(int device, native_stream stream) override;
  native_event create_event(int device) override;
  native_event create_timed_event(int device) override;
  double elapsed_us(native_event begin, native_event end) override;
  void destroy_event(native_event event) override;
  void record(int device, native_event event, native_stream stream) override;
  void wait(int device, native_stream stream, native_event event) override;
  bool is_done(native_event event) override;
  void run_on_device(int device, const std::function<void()>& work) override;

  void copy(int device, std::span<const device_copy> copies, native_stream stream) override;
  void copy_each(int device, std::span<const device_copy> copies, native_stream stream) override;
  void fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes, native_stream stream) override;
  void write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) override;
  void wait_word(int device, const std::uint32_t* word, std::uint32_t value, native_stream stream) override;
  bool needs_flush(int device) override;
  void wait_word_and_flush(int device, const std::uint32_t* word, std::uint32_t value,
                           native_stream stream) override;
  void enqueue_words(int device, std::span<const word_step> steps, native_stream stream) override;
  std::string architecture(int device) override;
  int major_version() override;
  native_kernel load_kernel(int device, const std::string& code, const char* entry) override;
  void launch(int device, native_kernel kernel, unsigned blocks, unsigned threads, std::span<void*> arguments,
              native_stream stream) override;

  // gpu_shared.cpp
  std::uint64_t granularity(int device) override;
  sharing_method preferred_sharing(int device) override;
  using device_driver::allocate_shared;
  void* allocate_shared(int device, std::uint64_t bytes, sharing_method method) override;
  void free_shared(int device, void* pointer) override;
  void enable_peer(int device, int peer) override;
  void allow_access(void* pointer, int peer) override;
  shared_handle export_shared(void* pointer) override;
  void end_export(void* pointer) override;
  void* import_shared(int device, const shared_handle& handle) override;
  void release_import(int device, void* pointer) override;

  // gpu_mapped.cpp
  void* allocate_mapped(int device, std::uint64_t bytes) override;
  void* resize_mapped(int device, void* pointer, std::uint64_t bytes) override;
  void free_mapped(int device, void* pointer) override;

 private:
  // Errors: the constructor throws if the device cannot be made current.
  class current_device : gpu::current_device {
   public:
    current_device(gpu_driver& driver, int device) : gpu::current_device(*driver.m_api, device) {
      driver.check(code(), ISTHMUS_HERE, "making the device current", device);
    }
  };

  int call_while_capturing(int device, const std::function<int()>& call);

  struct shared_block {  // shared memory that this process owns or has imported
    int device;
    std::uint64_t bytes;
    sharing_method method;
    bool is_imported;
    allocation physical;
    int descriptor;  // -1 unless exported
  };

  struct page_run {  // one contiguous range of physical memory
    allocation physical;
    std::uint64_t bytes;
  };
  struct mapped_block {
    int device;
    std::uint64_t reserved;  // size of the address range
    std::uint64_t bytes;     // size of all runs, which are mapped consecutively from the start
    std::vector<page_run> runs;
  };

  // Throws an error if `code` is not success. `action` describes the native call.
  void check(int code, const char* location, const std::string& action, int device = -1);
  allocation_properties properties(int device) const;
  void* map_physical(int device, allocation physical, std::uint64_t bytes);
  void unmap_physical(void* pointer, const shared_block& mapped);
  void* create_physical(int device, std::uint64_t bytes, allocation* physical);
  void* import_descriptor(int device, std::int64_t pid, int descriptor, std::uint64_t bytes,
                          allocation* physical);
  void clear(int device, void* pointer, std::uint64_t bytes);
  void add_block(void* pointer, const shared_block& block);
  shared_block find_block(const void* pointer, const char* location, const char* action);
  shared_block remove_block(int device, void* pointer, const char* location, const char* action);
  void* grow(void* pointer, mapped_block& block, std::uint64_t bytes);
  void shrink(void* pointer, mapped_block& block, std::uint64_t bytes);
  int map_runs(void* address, std::span<const page_run> runs, int device);
  int unmap_runs(void* address, std::span<const page_run> runs);
  int grant_access(void* address, std::span<const page_run> runs, int device);
  std::map<void*, mapped_block>::iterator find_mapped(int device, void* pointer, const char* location);
  bool is_captured(int device, native_stream stream);
  bool can_batch(int device, std::span<const device_copy> copies, native_stream stream);

  std::unique_ptr<gpu_api> m_api;
  int m_devices;
  std::mutex m_mutex;  // guards the members up to m_own_streams
  std::map<const void*, shared_block> m_blocks;
  std::vector<native_stream> m_own_streams;  // by device, for zero-filling

  std::mutex m_mapped_mutex;  // guards the members below; held while the driver maps pages
  std::map<void*, mapped_block> m_mapped;
  std::set<std::pair<int, int>> m_peers;  // the (device, peer) pairs passed to enable_peer
};

}  // namespace isthmus::gpu
