#include <fmt/format.h>

#include "device/gpu/gpu_api.hpp"

namespace isthmus::gpu {
namespace {

constexpr std::uint32_t full_mask = 0xffffffffu;

class hip_api final : public gpu_api {
 public:
  void find_memory_type();

  isthmus_platform platform() const override { return ISTHMUS_PLATFORM_HIP; }
  const char* title() const override { return "HIP"; }
  std::string text(int code) override { return get_error_string(code); }
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

 private:
  int m_device_memory_type = 2;
};

// hipMemoryTypeDevice was renumbered in ROCm 6.
void hip_api::find_memory_type() {
  int version = 0;
  if (get_runtime_version(&version) == success && version < 60000000) m_device_memory_type = 1;
}

std::string hip_api::version_text(int version) {
  return fmt::format("HIP {}.{}", version / 10000000, version / 100000 % 100);
}

int hip_api::enter(int device, std::intptr_t* previous) {
  int current = 0;
  const int code = get_device(&current);
  *previous = current;
  return code == success ? set_device(device) : code;
}

// The runtime keeps the last error until it is queried. The application must not see this error.
int hip_api::enable_peer(int peer) {
  const int code = device_enable_peer(peer, 0);
  if (code == peer_already_enabled) (void)get_last_error();
  return code;
}

// Writes to coarse-grained memory become visible to other devices only when a kernel ends. Flags and scratch
// need fine-grained memory.
int hip_api::allocate_coherent(void** pointer, std::size_t bytes) {
  return malloc_with_flags(pointer, bytes, fine_grained_memory);
}

int hip_api::copy(const device_copy& item, native_stream stream) {
  return memcpy_async(item.destination, item.source, item.bytes, memcpy_default, stream);
}

int hip_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return stream_wait_masked_word(stream, word, value, wait_until_reached, full_mask);
}

int hip_api::enqueue_words(native_stream stream, std::span<const word_step> steps) {
  int code = success;
  for (auto step = steps.begin(); step != steps.end() && code == success; ++step)
    code = step->action == word_action::wait_equal
               ? stream_wait_masked_word(stream, step->word, step->value, wait_until_equal, full_mask)
               : stream_write_word(stream, step->word, step->value, 0);
  return code;
}

}  // namespace

std::unique_ptr<gpu_api> load_hip(std::string& reason) {
  const dynamic_library library = dynamic_library::open(library_search(vendor_library::hip), reason);
  if (!library) {
    reason = "no HIP runtime: " + reason;
    return nullptr;
  }
  auto api = std::make_unique<hip_api>();
  if (const std::string missing = api->look_up(vendor_library::hip, library); !missing.empty()) {
    reason = fmt::format("{} lacks {}; install ROCm 5.2 or newer", library.path(), missing);
    return nullptr;
  }
  api->find_memory_type();
  return api;
}

}  // namespace isthmus::gpu
