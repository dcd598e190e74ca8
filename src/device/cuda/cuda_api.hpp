// Functions of the CUDA driver whose names or signatures differ from HIP.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "base/dynamic_library.hpp"
#include "device/gpu/gpu_api.hpp"

namespace isthmus::gpu {

using cuda_context = void*;

struct copy_attributes {
  int source_order;
  memory_location source_hint, destination_hint;
  unsigned flags;
};
// One operation of a batch of word operations (CUstreamBatchMemOpParams).
struct word_operation {
  int kind;
  void* word;
  std::uint64_t value;
  unsigned flags;
  std::uint64_t driver_data[2];
};
inline constexpr int kind_wait_word = 1;
inline constexpr int kind_write_word = 2;
inline constexpr int source_in_stream_order = 1;
inline constexpr unsigned prefer_overlap_with_compute = 1;
inline constexpr int cuda_memory_type_device = 2;
inline constexpr int attribute_capability_major = 75, attribute_capability_minor = 76;
inline constexpr int attribute_virtual_memory = 102;
inline constexpr int attribute_file_descriptors = 103;

class cuda_api final : public gpu_api {
 public:
  bool load(std::string& reason);

  isthmus_platform platform() const override { return ISTHMUS_PLATFORM_CUDA; }
  const char* title() const override { return "the CUDA driver"; }
  std::string text(int code) override;
  std::string version_text(int version) override;
  int major_version_of(int version) override { return version / 1000; }
  int enter(int device, std::intptr_t* previous) override;
  void leave(std::intptr_t previous) override;
  int native_context(int device, void** context) override { return primary_context(device, context); }
  int enable_peer(int peer) override;
  bool has_virtual_memory(int device) override;
  int allocate_coherent(void** pointer, std::size_t bytes) override { return allocate(pointer, bytes); }
  int device_memory_type() override { return cuda_memory_type_device; }
  int copy(const device_copy& item, native_stream stream) override;
  bool can_copy_batch() const override { return copy_batch_v2 != nullptr || copy_batch_v1 != nullptr; }
  int copy_batch(std::span<void*> destination, std::span<void*> source, std::span<std::size_t> bytes,
                 native_stream stream) override;
  int wait_word(native_stream stream, void* word, std::uint32_t value) override;
  int enqueue_words(native_stream stream, std::span<const word_step> steps) override;
  int architecture(int device, std::string& name) override;

  int (*get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*error_string)(int code, const char** text) = nullptr;
  int (*retain_context)(cuda_context* context, int device) = nullptr;
  int (*push_context)(cuda_context context) = nullptr;
  int (*pop_context)(cuda_context* context) = nullptr;
  int (*enable_context)(cuda_context peer, unsigned flags) = nullptr;
  int (*copy_async)(void* destination, void* source, std::size_t bytes, native_stream stream) = nullptr;
  // v2: CUDA 13.0 and newer; v1: CUDA 12.8.
  int (*copy_batch_v2)(void** destination, void** source, std::size_t* bytes, std::size_t count,
                       copy_attributes*, std::size_t* attribute_of, std::size_t attributes,
                       native_stream) = nullptr;
  int (*copy_batch_v1)(void** destination, void** source, std::size_t* bytes, std::size_t count,
                       copy_attributes*, std::size_t* attribute_of, std::size_t attributes, std::size_t* failed,
                       native_stream) = nullptr;
  int (*wait_value)(native_stream stream, void* word, std::uint32_t value, unsigned flags) = nullptr;
  int (*batch_words)(native_stream stream, unsigned count, word_operation*, unsigned flags) = nullptr;

 private:
  static constexpr int max_devices = 64;
  int primary_context(int device, cuda_context* context);
  void load_virtual_memory(const dynamic_library& library);

  std::mutex m_mutex;
  std::array<std::atomic<cuda_context>, max_devices> m_contexts{};  // primary contexts, never released
};

}  // namespace isthmus::gpu
