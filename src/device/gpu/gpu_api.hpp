// Table of the functions of the CUDA driver or of HIP that gpu_driver uses. Most functions have the same
// signature under different names, so both share one table. The differences are virtual functions
// (cuda_api.cpp, hip_api.cpp). The types are vendor-neutral; abi_check_cuda.cpp and abi_check_hip.cpp compare
// them with the vendors' headers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/driver.hpp"

namespace isthmus::gpu {

// Result codes, flags and enumerators that have the same values in CUDA and HIP.
inline constexpr int success = 0;
inline constexpr int out_of_memory = 2;
inline constexpr int no_device = 100;
inline constexpr int invalid_device = 101;
inline constexpr int not_ready = 600;
inline constexpr int peer_already_enabled = 704;
inline constexpr int not_supported = 801;
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned host_portable = 1;  // pinned for every device, not only for the current one
inline constexpr unsigned host_mapped = 2;
inline constexpr unsigned ipc_lazy_peer_access = 1;
inline constexpr int attribute_memory_type = 2;
inline constexpr int attribute_ordinal = 9;
inline constexpr int capture_mode_relaxed = 2;
inline constexpr unsigned wait_until_equal = 1;
inline constexpr unsigned wait_until_reached = 0;  // std::int32_t(*word - value) >= 0

struct ipc_handle {
  char bytes[64];
};

// Physical memory, managed separately from addresses. CUDA only: HIP's structures change between releases.
using allocation = unsigned long long;
struct memory_location {
  int type, id;
};
struct allocation_properties {
  int type, handle_types;
  memory_location location;
  void* unused_on_linux;
  unsigned char compression, gpu_direct;
  unsigned short usage;
  unsigned char reserved[4];
};
struct access_description {
  memory_location location;
  int flags;
};
inline constexpr int type_pinned = 1;
inline constexpr int location_device = 1;
inline constexpr int handle_file_descriptor = 1;
inline constexpr int access_read_write = 3;
inline constexpr int granularity_recommended = 1;

struct virtual_memory {
  int (*create)(allocation* created, std::size_t bytes, const allocation_properties*,
                unsigned long long) = nullptr;
  int (*release)(allocation) = nullptr;
  int (*reserve)(void** address, std::size_t bytes, std::size_t alignment, void* preferred_address,
                 unsigned long long) = nullptr;
  int (*unreserve)(void* address, std::size_t bytes) = nullptr;
  int (*map)(void* address, std::size_t bytes, std::size_t offset, allocation, unsigned long long) = nullptr;
  int (*unmap)(void* address, std::size_t bytes) = nullptr;
  int (*set_access)(void* address, std::size_t bytes, const access_description*, std::size_t count) = nullptr;
  int (*granularity)(std::size_t* bytes, const allocation_properties*, int option) = nullptr;
  int (*export_descriptor)(void* descriptor, allocation, int kind, unsigned long long) = nullptr;
  int (*import_descriptor)(allocation*, void* descriptor, int kind) = nullptr;
};

class gpu_api {
 public:
  virtual ~gpu_api() = default;

  virtual isthmus_platform platform() const = 0;
  virtual const char* title() const = 0;
  // Returns the vendor's description of a result code.
  virtual std::string text(int code) = 0;
  virtual std::string version_text(int version) = 0;
  virtual int major_version_of(int version) = 0;

  // Makes `device` current for the calling thread. leave restores the previous state.
  virtual int enter(int device, std::intptr_t* previous) = 0;
  virtual void leave(std::intptr_t previous) = 0;
  // Gets the device's primary context. Returns not_supported if the platform has none.
  virtual int native_context(int device, void** context) = 0;
  // Gives the current device access to plain memory of `peer`.
  virtual int enable_peer(int peer) = 0;

  // True if blocks can be shared as descriptors. In that case, `memory` is complete.
  virtual bool has_virtual_memory(int device) = 0;
  // Allocates plain memory that is coherent between devices while kernels run.
  virtual int allocate_coherent(void** pointer, std::size_t bytes) = 0;
  // Returns the value of attribute_memory_type for device memory.
  virtual int device_memory_type() = 0;

  virtual int copy(const device_copy& item, native_stream stream) = 0;
  // Batches run on the copy engines without order among the copies. can_copy_batch is false if the driver has
  // no such call. Captured streams do not accept batches.
  virtual bool can_copy_batch() const = 0;
  virtual int copy_batch(std::span<void*> destination, std::span<void*> source, std::span<std::size_t> bytes,
                         native_stream stream) = 0;
  virtual int wait_word(native_stream stream, void* word, std::uint32_t value) = 0;
  virtual int enqueue_words(native_stream stream, std::span<const word_step> steps) = 0;
  // See device_driver::architecture.
  virtual int architecture(int device, std::string& name) = 0;

  // The most recently used device. Host memory is pinned in its context, so that no context is created on
  // an unused device.
  std::atomic<int> recent_device{0};

  int (*init)(unsigned flags) = nullptr;
  int (*get_version)(int* version) = nullptr;
  int (*get_count)(int* devices) = nullptr;
  int (*get_name)(char* text, int capacity, int device) = nullptr;
  int (*get_bus_id)(char* text, int capacity, int device) = nullptr;
  int (*can_access_peer)(int* is_accessible, int device, int peer) = nullptr;
  int (*get_memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  int (*get_pointer_attribute)(void* value, int attribute, void* pointer) = nullptr;
  int (*allocate)(void** pointer, std::size_t bytes) = nullptr;
  int (*free)(void* pointer) = nullptr;
  int (*allocate_host)(void** pointer, std::size_t bytes, unsigned flags) = nullptr;
  int (*free_host)(void* pointer) = nullptr;
  int (*ipc_export)(ipc_handle* handle, void* pointer) = nullptr;
  int (*ipc_open)(void** pointer, ipc_handle handle, unsigned flags) = nullptr;
  int (*ipc_close)(void* pointer) = nullptr;
  int (*stream_create)(native_stream* stream, unsigned flags, int priority) = nullptr;
  int (*stream_priorities)(int* lowest, int* highest) = nullptr;
  int (*stream_destroy)(native_stream stream) = nullptr;
  int (*stream_synchronize)(native_stream stream) = nullptr;
  int (*stream_is_capturing)(native_stream stream, int* status) = nullptr;
  int (*stream_wait_event)(native_stream stream, native_event event, unsigned flags) = nullptr;
  int (*event_create)(native_event* event, unsigned flags) = nullptr;
  int (*event_destroy)(native_event event) = nullptr;
  int (*event_record)(native_event event, native_stream stream) = nullptr;
  int (*event_query)(native_event event) = nullptr;
  int (*event_elapsed)(float* milliseconds, native_event begin, native_event end) = nullptr;  // may be missing
  int (*fill)(void* pointer, unsigned char value, std::size_t bytes, native_stream stream) = nullptr;
  int (*write_word)(native_stream stream, void* word, std::uint32_t value, unsigned flags) = nullptr;
  int (*module_load)(void** module, const void* code) = nullptr;
  int (*module_function)(native_kernel* kernel, void* module, const char* entry) = nullptr;
  int (*function_load)(native_kernel kernel) = nullptr;  // may be missing
  int (*exchange_capture_mode)(int* mode) = nullptr;     // may be missing
  int (*launch)(native_kernel kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                native_stream stream, void** arguments, void** extra) = nullptr;
  virtual_memory memory;
};

// Loads the platform's library. Returns nullptr and sets `reason` if it is missing or too old.
std::unique_ptr<gpu_api> load_cuda(std::string& reason);
std::unique_ptr<gpu_api> load_hip(std::string& reason);

}  // namespace isthmus::gpu
