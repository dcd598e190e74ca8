#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "device/gpu/gpu_api.hpp"

namespace isthmus::gpu {
namespace {

class cuda_api final : public gpu_api {
 public:
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
  int allocate_coherent(void** pointer, std::size_t bytes) override { return malloc(pointer, bytes); }
  int device_memory_type() override { return cuda_memory_type_device; }
  int copy(const device_copy& item, native_stream stream) override;
  bool can_copy_batch() const override { return copy_batch_v2 != nullptr || copy_batch_v1 != nullptr; }
  int copy_batch(std::span<void*> destination, std::span<void*> source, std::span<std::size_t> bytes,
                 native_stream stream) override;
  int wait_word(native_stream stream, void* word, std::uint32_t value) override;
  int enqueue_words(native_stream stream, std::span<const word_step> steps) override;
  int architecture(int device, std::string& name) override;

 private:
  static constexpr int max_devices = 64;
  int primary_context(int device, void** context);

  std::mutex m_mutex;
  std::array<std::atomic<void*>, max_devices> m_contexts{};  // primary contexts, never released
};

std::string cuda_api::text(int code) {
  const char* words = nullptr;
  return find_error_string(code, &words) == success && words != nullptr ? words
                                                                        : fmt::format("CUDA error {}", code);
}

std::string cuda_api::version_text(int version) {
  return fmt::format("CUDA driver {}.{}", version / 1000, version % 1000 / 10);
}

// The primary context is the one that the CUDA runtime uses, so the application's streams and memory are
// valid in it.
int cuda_api::primary_context(int device, void** context) {
  if (device < 0 || device >= max_devices) return invalid_device;
  std::atomic<void*>& cached = m_contexts[static_cast<std::size_t>(device)];
  *context = cached.load(std::memory_order_acquire);
  if (*context != nullptr) return success;
  const std::lock_guard lock(m_mutex);
  *context = cached.load(std::memory_order_relaxed);
  if (*context != nullptr) return success;
  const int code = context_retain(context, device);
  if (code == success) cached.store(*context, std::memory_order_release);
  return code;
}

int cuda_api::enter(int device, std::intptr_t*) {
  void* context = nullptr;
  const int code = primary_context(device, &context);
  return code == success ? context_push(context) : code;
}

void cuda_api::leave(std::intptr_t) {
  void* own = nullptr;
  context_pop(&own);
}

int cuda_api::enable_peer(int peer) {
  void* context = nullptr;
  const int code = primary_context(peer, &context);
  return code == success ? context_enable_peer(context, 0) : code;
}

bool cuda_api::has_virtual_memory(int device) {
  int can_map = 0, can_export = 0;
  return device_get_attribute(&can_map, attribute_virtual_memory, device) == success &&
         device_get_attribute(&can_export, attribute_file_descriptors, device) == success && can_map != 0 &&
         can_export != 0;
}

int cuda_api::copy(const device_copy& item, native_stream stream) {
  return copy_async(item.destination, item.source, item.bytes, stream);
}

int cuda_api::copy_batch(std::span<void*> destination, std::span<void*> source, std::span<std::size_t> bytes,
                         native_stream stream) {
  copy_attributes attributes{source_in_stream_order, {}, {}, prefer_overlap_with_compute};
  std::size_t first = 0, failed = 0;
  if (copy_batch_v2 != nullptr)
    return copy_batch_v2(destination.data(), source.data(), bytes.data(), destination.size(), &attributes,
                         &first, 1, stream);
  return copy_batch_v1(destination.data(), source.data(), bytes.data(), destination.size(), &attributes, &first,
                       1, &failed, stream);
}

int cuda_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return stream_wait_word(stream, word, value, wait_until_reached);
}

int cuda_api::enqueue_words(native_stream stream, std::span<const word_step> steps) {
  if (stream_batch_words == nullptr) return not_supported;
  constexpr std::size_t max_operations = 128;  // per driver call
  std::array<word_operation, max_operations> batch{};
  for (std::size_t offset = 0; offset < steps.size(); offset += max_operations) {
    const auto operations = steps.subspan(offset, std::min(max_operations, steps.size() - offset));
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const bool is_wait = operations[i].action == word_action::wait_equal;
      batch[i] = {is_wait ? kind_wait_word : kind_write_word,
                  operations[i].word,
                  operations[i].value,
                  is_wait ? wait_until_equal : 0,
                  {}};
    }
    const int code = stream_batch_words(stream, static_cast<unsigned>(operations.size()), batch.data(), 0);
    if (code != success) return code;
  }
  return success;
}

int cuda_api::architecture(int device, std::string& name) {
  int major = 0, minor = 0;
  int code = device_get_attribute(&major, attribute_capability_major, device);
  if (code == success) code = device_get_attribute(&minor, attribute_capability_minor, device);
  name = fmt::format("sm_{}{}", major, minor);
  return code;
}

}  // namespace

std::unique_ptr<gpu_api> load_cuda(std::string& reason) {
  const dynamic_library library = dynamic_library::open(library_search(vendor_library::cuda_driver), reason);
  if (!library) {
    reason = "no CUDA driver: " + reason;
    return nullptr;
  }
  auto api = std::make_unique<cuda_api>();
  const std::string missing = api->look_up(vendor_library::cuda_driver, library);
  if (missing.empty()) return api;
  reason = fmt::format("{} lacks {}; install a driver for CUDA 12.0 or newer", library.path(), missing);
  return nullptr;
}

}  // namespace isthmus::gpu
