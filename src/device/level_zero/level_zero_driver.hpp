// The device driver for Level Zero. All devices share one context, and a stream is an immediate command list on
// a copy engine. It is contract-tested with the real loader and a stand-in driver, but has not run on hardware.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/driver.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier): Level Zero defines these names
struct _ze_context_handle_t;
struct _ze_device_handle_t;
struct _ze_driver_handle_t;
struct _ze_command_list_handle_t;
struct _ze_event_pool_handle_t;
struct _ze_event_handle_t;
// NOLINTEND(bugprone-reserved-identifier)

namespace isthmus {

struct level_zero_api;

class level_zero_driver final : public device_driver {
 public:
  // Returns nullptr and sets `reason` if there is no loader, no driver or no GPU.
  static std::unique_ptr<level_zero_driver> load(std::string& reason);
  ~level_zero_driver() override;

  // Used by UMF and by callers with their own context.
  _ze_device_handle_t* native_device(int device) const;
  void* allocate_in_context(_ze_context_handle_t* context, int device, std::uint64_t bytes);
  void free_in_context(_ze_context_handle_t* context, int device, void* pointer);

  std::string version() override;
  int device_count() override { return static_cast<int>(m_devices.size()); }
  std::string name(int device) override;
  std::string bus_id(int device) override;
  device_memory_info memory_info(int device) override;
  bool can_access_peer(int device, int peer) override;
  int owner_of(const void* pointer) override;
  void* native_context(int) override { return m_context; }

  void* allocate(int device, std::uint64_t bytes) override;
  void free(int device, void* pointer) override;
  void* allocate_host(std::uint64_t bytes) override;
  void free_host(void* pointer) override;

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

  native_stream create_stream(int device, stream_priority priority) override;
  void destroy_stream(int device, native_stream stream) override;
  void synchronize(int device, native_stream stream) override;
  bool is_capturing(int device, native_stream stream) override;
  native_event create_event(int device) override;
  void destroy_event(native_event event) override;
  void record(int device, native_event event, native_stream stream) override;
  void wait(int device, native_stream stream, native_event event) override;
  bool is_done(native_event event) override;

  void copy(int device, std::span<const device_copy> copies, native_stream stream) override;
  void fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes, native_stream stream) override;
  void write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) override;
  void wait_word(int device, const std::uint32_t* word, std::uint32_t value, native_stream stream) override;

 private:
  struct device_state {
    _ze_device_handle_t* handle;
    std::uint64_t max_allocation_bytes;
    std::uint32_t copy_group;  // ordinal of the command queue group that streams use
    std::uint64_t max_fill_pattern_bytes;
  };
  struct recorded_event;  // the target of a native_event

  level_zero_driver(std::unique_ptr<level_zero_api> api, _ze_driver_handle_t* driver);
  void add_device(_ze_device_handle_t* device);
  const device_state& state(int device) const;
  _ze_command_list_handle_t* command_list(native_stream stream) const;
  void fill_pattern(int device, void* pointer, const void* pattern, std::size_t pattern_bytes,
                    std::uint64_t bytes, native_stream stream, const char* function);

  std::unique_ptr<level_zero_api> m_api;
  _ze_driver_handle_t* m_driver;
  _ze_context_handle_t* m_context = nullptr;
  std::vector<device_state> m_devices;
  std::mutex m_mutex;                   // guards m_shared
  std::map<const void*, int> m_shared;  // address of each shared block -> its device
};

}  // namespace isthmus
