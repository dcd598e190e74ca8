// The functions of the CUDA driver or of HIP that gpu_driver uses. Most functions have the same signature under
// different names, so both share one table. The differences are virtual functions (cuda_api.cpp, hip_api.cpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/driver.hpp"
#include "device/gpu/functions.hpp"

namespace isthmus::gpu {

class gpu_api : public gpu_functions {
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

  // True if blocks can be shared as descriptors.
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
};

// Loads the platform's library. Returns nullptr and sets `reason` if it is missing or too old.
std::unique_ptr<gpu_api> load_cuda(std::string& reason);
std::unique_ptr<gpu_api> load_hip(std::string& reason);

// Makes a device current for a scope and restores the previous state.
class current_device {
 public:
  current_device(gpu_api& api, int device) : m_api(api), m_code(api.enter(device, &m_previous)) {
    if (m_code == success) api.recent_device.store(device, std::memory_order_relaxed);
  }
  ~current_device() {
    if (m_code == success) m_api.leave(m_previous);
  }
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;
  int code() const { return m_code; }

 private:
  gpu_api& m_api;
  std::intptr_t m_previous = 0;
  int m_code;
};

}  // namespace isthmus::gpu
