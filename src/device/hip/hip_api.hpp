// Functions of HIP whose names or signatures differ from the CUDA driver.
#pragma once

#include "base/dynamic_library.hpp"
#include "device/gpu/gpu_api.hpp"

namespace isthmus::gpu {

inline constexpr int hip_copy_default = 4;
inline constexpr unsigned hip_fine_grained = 1;
inline constexpr std::uint32_t full_mask = 0xffffffffu;

class hip_api final : public gpu_api {
 public:
  bool load(std::string& reason);

  isthmus_platform platform() const override { return ISTHMUS_PLATFORM_HIP; }
  const char* title() const override { return "HIP"; }
  std::string text(int code) override { return error_string(code); }
  std::string version_text(int version) override;
  int major_version_of(int version) override { return version / 10000000; }
  int enter(int device, std::intptr_t* previous) override;
  void leave(std::intptr_t previous) override { set_device(static_cast<int>(previous)); }
  int native_context(int, void**) override { return not_supported; }
  int enable_peer(int peer) override;
  // HIP supports descriptors since 6.0, but they are untested here, and older releases
  // use different structures.
  bool has_virtual_memory(int) override { return false; }
  int allocate_coherent(void** pointer, std::size_t bytes) override;
  int device_memory_type() override { return m_device_memory_type; }
  int copy(const device_copy& item, native_stream stream) override;
  bool can_copy_batch() const override { return false; }
  int copy_batch(std::span<void*>, std::span<void*>, std::span<std::size_t>, native_stream) override {
    return not_supported;
  }
  int wait_word(native_stream stream, void* word, std::uint32_t value) override;
  int enqueue_words(native_stream stream, std::span<const word_step> steps) override;
  // HIPRTC generates code for the current device.
  int architecture(int, std::string& name) override { return name.clear(), success; }

  const char* (*error_string)(int code) = nullptr;
  int (*last_error)() = nullptr;
  int (*get_device)(int* device) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*runtime_version)(int* version) = nullptr;
  int (*enable_device)(int peer, unsigned flags) = nullptr;
  int (*allocate_with_flags)(void** pointer, std::size_t bytes, unsigned flags) = nullptr;
  int (*copy_async)(void* destination, const void* source, std::size_t bytes, int kind,
                    native_stream stream) = nullptr;
  int (*wait_value)(native_stream stream, void* word, std::uint32_t value, unsigned flags,
                    std::uint32_t mask) = nullptr;

 private:
  int m_device_memory_type = 2;
};

}  // namespace isthmus::gpu
