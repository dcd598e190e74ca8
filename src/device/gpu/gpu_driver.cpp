#include "device/gpu/gpu_driver.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace isthmus::gpu {

gpu_driver::gpu_driver(std::unique_ptr<gpu_api> api, int devices)
    : m_api(std::move(api)), m_devices(devices), m_own_streams(static_cast<std::size_t>(devices), nullptr) {}

void gpu_driver::check(int code, const char* location, const std::string& action, int device) {
  if (code == success) return;
  isthmus_status status = ISTHMUS_ERROR_BACKEND;
  std::string hint = "check earlier kernels and copies: after a fault, every later call fails with its code";
  if (code == out_of_memory) {
    status = ISTHMUS_ERROR_OUT_OF_MEMORY;
    hint = "free device memory, or request less";
  } else if (code == not_supported) {
    status = ISTHMUS_ERROR_UNSUPPORTED;
    hint = "use a device and driver that support this call";
  }
  const std::string device_text = device < 0 ? std::string() : fmt::format(" on device {}", device);
  throw make_error(status, location,
                   fmt::format("{}: {}{} failed: {}", m_api->title(), action, device_text, m_api->text(code)),
                   hint, code);
}

std::string gpu_driver::version() {
  int version = 0;
  check(m_api->get_version(&version), ISTHMUS_HERE, "querying the version");
  return m_api->version_text(version);
}

std::string gpu_driver::name(int device) {
  char text[256] = {};
  check(m_api->device_get_name(text, sizeof text, device), ISTHMUS_HERE, "querying the name", device);
  return text;
}

std::string gpu_driver::bus_id(int device) {
  char text[64] = {};
  check(m_api->device_get_pci_bus_id(text, sizeof text, device), ISTHMUS_HERE, "querying the bus id", device);
  return text;
}

device_memory_info gpu_driver::memory_info(int device) {
  const current_device current(*this, device);
  std::size_t free_bytes = 0, total_bytes = 0;
  check(m_api->get_memory_info(&free_bytes, &total_bytes), ISTHMUS_HERE, "querying free memory", device);
  return {free_bytes, total_bytes};
}

bool gpu_driver::can_access_peer(int device, int peer) {
  if (device == peer) return true;
  int is_accessible = 0;
  check(m_api->device_can_access_peer(&is_accessible, device, peer), ISTHMUS_HERE,
        fmt::format("querying access to device {}", peer), device);
  return is_accessible != 0;
}

void* gpu_driver::native_context(int device) {
  void* context = nullptr;
  check(m_api->native_context(device, &context), ISTHMUS_HERE, "querying the context", device);
  return context;
}

// CUDA and HIP return an error or type 0 for unknown memory.
int gpu_driver::owner_of(const void* pointer) {
  auto* const address = const_cast<void*>(pointer);
  unsigned type = 0;
  int device = -1;
  if (pointer == nullptr || m_api->get_pointer_attribute(&type, attribute_memory_type, address) != success ||
      static_cast<int>(type) != m_api->device_memory_type() ||
      m_api->get_pointer_attribute(&device, attribute_ordinal, address) != success)
    return -1;
  return device;
}

// Makes calls that use no stream. A thread that captures a stream may make them only in relaxed mode.
int gpu_driver::call_while_capturing(int device, const std::function<int()>& call) {
  const auto exchange = m_api->exchange_capture_mode;
  int mode = capture_mode_relaxed;
  if (exchange != nullptr) check(exchange(&mode), ISTHMUS_HERE, "setting the relaxed capture mode", device);
  const int result = call();
  if (exchange != nullptr) check(exchange(&mode), ISTHMUS_HERE, "restoring the capture mode", device);
  return result;
}

void* gpu_driver::allocate(int device, std::uint64_t bytes) {
  const current_device current(*this, device);
  void* pointer = nullptr;
  const int result = call_while_capturing(device, [&] { return m_api->malloc(&pointer, bytes); });
  check(result, ISTHMUS_HERE, fmt::format("allocating {} bytes", bytes), device);
  return pointer;
}

void gpu_driver::free(int device, void* pointer) {
  const current_device current(*this, device);
  check(m_api->free(pointer), ISTHMUS_HERE, fmt::format("freeing {}", pointer), device);
}

// The pages do not belong to a device, but a context must be current. Device 0 is not always used, because this
// would create a context on an otherwise unused device.
void* gpu_driver::allocate_host(std::uint64_t bytes) {
  const int device = m_api->recent_device;
  const current_device current(*this, device);
  void* pointer = nullptr;
  check(m_api->host_alloc(&pointer, bytes, host_portable | host_mapped), ISTHMUS_HERE,
        fmt::format("pinning {} bytes of host memory", bytes));
  return pointer;
}

void gpu_driver::free_host(void* pointer) {
  const int device = m_api->recent_device;
  const current_device current(*this, device);
  check(m_api->host_free(pointer), ISTHMUS_HERE, fmt::format("freeing pinned memory at {}", pointer));
}

void gpu_driver::register_host(void* pointer, std::uint64_t bytes) {
  const int device = m_api->recent_device;
  const current_device current(*this, device);
  void* device_pointer = nullptr;
  const int result = call_while_capturing(device, [&] {
    int status = m_api->host_register(pointer, bytes, register_portable | register_mapped);
    if (status == success) status = m_api->host_device_pointer(&device_pointer, pointer, 0);
    if (status == success && device_pointer != pointer) status = m_api->host_unregister(pointer);
    return status;
  });
  check(result, ISTHMUS_HERE, fmt::format("pinning {} bytes of host memory at {}", bytes, pointer));
  if (device_pointer != pointer)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("pinning {} bytes of host memory at {}: devices access it at {}", bytes,
                                 pointer, device_pointer),
                     "use devices that access host memory at the address of the process");
}

native_stream gpu_driver::create_stream(int device, stream_priority priority) {
  const current_device current(*this, device);
  int lowest = 0, highest = 0;  // on both platforms, 0 is the normal priority
  check(m_api->stream_get_priorities(&lowest, &highest), ISTHMUS_HERE, "querying stream priorities", device);
  native_stream stream = nullptr;
  const int level = priority == stream_priority::high     ? highest
                    : priority == stream_priority::raised ? highest / 2
                                                          : 0;
  check(m_api->stream_create_with_priority(&stream, non_blocking_stream, level), ISTHMUS_HERE,
        "creating a stream", device);
  return stream;
}

void gpu_driver::destroy_stream(int device, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->stream_destroy(stream), ISTHMUS_HERE, "destroying a stream", device);
}

void gpu_driver::synchronize(int device, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->stream_synchronize(stream), ISTHMUS_HERE, "waiting for a stream", device);
}

bool gpu_driver::is_capturing(int device, native_stream stream) {
  if (is_null_stream(stream)) return false;
  const current_device current(*this, device);
  return is_captured(device, stream);
}

// Precondition: the device is current, and the stream is not a NULL stream.
bool gpu_driver::is_captured(int device, native_stream stream) {
  int status = 0;
  check(m_api->stream_is_capturing(stream, &status), ISTHMUS_HERE, "querying the capture status of a stream",
        device);
  return status != 0;
}

bool gpu_driver::is_blocking(int device, native_stream stream) {
  if (is_null_stream(stream)) return true;
  const current_device current(*this, device);
  unsigned flags = 0;
  check(m_api->stream_get_flags(stream, &flags), ISTHMUS_HERE, "querying the flags of a stream", device);
  return (flags & non_blocking_stream) == 0;
}

native_event gpu_driver::create_event(int device) {
  const current_device current(*this, device);
  native_event event = nullptr;
  check(m_api->event_create(&event, event_without_timing), ISTHMUS_HERE, "creating an event", device);
  return event;
}

native_event gpu_driver::create_timed_event(int device) {
  if (m_api->event_elapsed == nullptr) return device_driver::create_timed_event(device);
  const current_device current(*this, device);
  native_event event = nullptr;
  check(m_api->event_create(&event, 0), ISTHMUS_HERE, "creating a timed event", device);
  return event;
}

double gpu_driver::elapsed_us(native_event begin, native_event end) {
  float milliseconds = 0;
  check(m_api->event_elapsed(&milliseconds, begin, end), ISTHMUS_HERE, "querying the time between events");
  return 1e3 * static_cast<double>(milliseconds);
}

void gpu_driver::run_on_device(int device, const std::function<void()>& work) {
  const current_device current(*this, device);
  work();
}

void gpu_driver::destroy_event(native_event event) {
  check(m_api->event_destroy(event), ISTHMUS_HERE, "destroying an event");
}

void gpu_driver::record(int device, native_event event, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->event_record(event, stream), ISTHMUS_HERE, "recording an event", device);
}

void gpu_driver::wait(int device, native_stream stream, native_event event) {
  const current_device current(*this, device);
  check(m_api->stream_wait_event(stream, event, 0), ISTHMUS_HERE, "making a stream wait for an event", device);
}

bool gpu_driver::is_done(native_event event) {
  const int code = m_api->event_query(event);
  if (code == not_ready) return false;
  check(code, ISTHMUS_HERE, "querying an event");
  return true;
}

// The batch call accepts neither captured streams nor the NULL stream.
bool gpu_driver::can_batch(int device, std::span<const device_copy> copies, native_stream stream) {
  return !copies.empty() && !is_null_stream(stream) && m_api->can_copy_batch() && !is_captured(device, stream);
}

void gpu_driver::copy(int device, std::span<const device_copy> copies, native_stream stream) {
  const current_device current(*this, device);
  if (!can_batch(device, copies, stream)) return copy_each(device, copies, stream);
  constexpr std::size_t max_batch = 32;  // per driver call
  std::array<void*, max_batch> destination{}, source{};
  std::array<std::size_t, max_batch> bytes{};
  for (auto next = copies.begin(); next != copies.end();) {
    std::size_t batch_size = 0;
    for (; next != copies.end() && batch_size < max_batch; ++next) {
      if (next->bytes == 0) continue;
      destination[batch_size] = next->destination;
      source[batch_size] = const_cast<void*>(next->source);
      bytes[batch_size++] = next->bytes;
    }
    if (batch_size == 0) return;
    check(m_api->copy_batch(std::span(destination).first(batch_size), std::span(source).first(batch_size),
                            std::span(bytes).first(batch_size), stream),
          ISTHMUS_HERE, fmt::format("issuing a batch of {} copies", batch_size), device);
  }
}

void gpu_driver::copy_each(int device, std::span<const device_copy> copies, native_stream stream) {
  const current_device current(*this, device);
  for (const device_copy& item : copies)
    if (item.bytes > 0)
      check(m_api->copy(item, stream), ISTHMUS_HERE, fmt::format("copying {} bytes", item.bytes), device);
}

void gpu_driver::fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes,
                      native_stream stream) {
  if (bytes == 0) return;
  const current_device current(*this, device);
  check(m_api->fill(pointer, value, bytes, stream), ISTHMUS_HERE, fmt::format("filling {} bytes", bytes),
        device);
}

void gpu_driver::write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->stream_write_word(stream, word, value, 0), ISTHMUS_HERE, "writing a word on a stream", device);
}

void gpu_driver::wait_word(int device, const std::uint32_t* word, std::uint32_t value, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->wait_word(stream, const_cast<std::uint32_t*>(word), value), ISTHMUS_HERE,
        "making a stream wait for a word", device);
}

// HIP has no such flush.
bool gpu_driver::needs_flush(int device) {
  int is_supported = 0;
  return m_api->stream_wait_word != nullptr &&
         m_api->device_get_attribute(&is_supported, attribute_flush_remote_writes, device) == success &&
         is_supported != 0;
}

void gpu_driver::wait_word_and_flush(int device, const std::uint32_t* word, std::uint32_t value,
                                     native_stream stream) {
  const current_device current(*this, device);
  check(m_api->stream_wait_word(stream, const_cast<std::uint32_t*>(word), value,
                                wait_until_reached | wait_then_flush),
        ISTHMUS_HERE, "making a stream wait for a word", device);
}

void gpu_driver::enqueue_words(int device, std::span<const word_step> steps, native_stream stream) {
  if (steps.empty()) return;
  const current_device current(*this, device);
  check(m_api->enqueue_words(stream, steps), ISTHMUS_HERE,
        fmt::format("issuing {} word operations on a stream", steps.size()), device);
}

std::string gpu_driver::architecture(int device) {
  std::string name;
  check(m_api->architecture(device, name), ISTHMUS_HERE, "querying the architecture", device);
  return name;
}

int gpu_driver::major_version() {
  int version = 0;
  check(m_api->get_version(&version), ISTHMUS_HERE, "querying the version");
  return m_api->major_version_of(version);
}

native_kernel gpu_driver::load_kernel(int device, const std::string& code, const char* entry) {
  const current_device current(*this, device);
  void* module = nullptr;
  native_kernel kernel = nullptr;
  const int result = call_while_capturing(device, [&] {
    int status = m_api->module_load(&module, code.data());
    if (status == success) status = m_api->module_function(&kernel, module, entry);
    // Without this, some drivers load the kernel at its first launch.
    if (status == success && m_api->function_load != nullptr) status = m_api->function_load(kernel);
    return status;
  });
  check(result, ISTHMUS_HERE, fmt::format("loading the kernel {}", entry), device);
  return kernel;
}

void gpu_driver::launch(int device, native_kernel kernel, unsigned blocks, unsigned threads,
                        std::span<void*> arguments, native_stream stream) {
  const current_device current(*this, device);
  check(m_api->launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments.data(), nullptr), ISTHMUS_HERE,
        fmt::format("launching a kernel with {} x {} threads", blocks, threads), device);
}

}  // namespace isthmus::gpu
