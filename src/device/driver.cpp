#include "device/driver.hpp"

#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "device/gpu/gpu_driver.hpp"
#include "device/level_zero/level_zero_driver.hpp"

namespace isthmus {
namespace {

device_driver* start_driver(std::unique_ptr<gpu::gpu_api> api, std::string& reason) {
  if (api == nullptr) return nullptr;
  int devices = 0;
  int code = api->init(0);
  if (code == gpu::success) code = api->get_device_count(&devices);
  if (code != gpu::success || devices == 0) {
    // HIP without a GPU returns hipErrorInvalidDevice.
    const bool has_no_device = code == gpu::success || code == gpu::no_device || code == gpu::invalid_device;
    reason = fmt::format("{}: {}", api->title(), has_no_device ? "no device" : api->text(code));
    return nullptr;
  }
  // Never deleted: the driver must outlive all static objects that may still free blocks.
  return new gpu::gpu_driver(std::move(api), devices);
}

device_driver* load(isthmus_platform platform, std::string& reason) {
  switch (platform) {
    case ISTHMUS_PLATFORM_CUDA: return start_driver(gpu::load_cuda(reason), reason);
    case ISTHMUS_PLATFORM_HIP: return start_driver(gpu::load_hip(reason), reason);
    case ISTHMUS_PLATFORM_LEVEL_ZERO: return level_zero_driver::load(reason).release();  // also never deleted
    case ISTHMUS_PLATFORM_OPENCL:
    case ISTHMUS_PLATFORM_HOST:
    case ISTHMUS_PLATFORM_COUNT: break;
  }
  reason = "Isthmus has no device driver for this platform";
  return nullptr;
}

[[noreturn]] void fail_mapped() {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   "this driver does not support blocks that grow by mapping pages",
                   "resize an ordinary block; its contents are copied");
}

[[noreturn]] void fail_kernels(int device) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("device {}: Isthmus has no kernels for this platform", device),
                   "choose a backend that needs no kernels");
}

struct driver_slot {
  std::once_flag once;
  device_driver* driver = nullptr;
  std::string reason;
};

}  // namespace

void* device_driver::native_context(int) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "native_context: this platform has no contexts",
                   "pass no context");
}

void device_driver::register_host(void*, std::uint64_t) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   "register_host: this platform cannot pin memory of the program",
                   "choose a backend that needs no signals in host memory");
}

void device_driver::enqueue_words(int device, std::span<const word_step>, native_stream) {
  throw make_error(
      ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
      fmt::format("device {}: streams of this platform cannot wait for an exact word value", device),
      "choose a backend that needs no stream memory operations");
}

bool device_driver::is_blocking(int, native_stream stream) { return is_null_stream(stream); }

bool device_driver::needs_flush(int) { return false; }

void device_driver::wait_word_and_flush(int device, const std::uint32_t* word, std::uint32_t value,
                                        native_stream stream) {
  wait_word(device, word, value, stream);
}

std::string device_driver::architecture(int device) { fail_kernels(device); }
int device_driver::major_version() { return 0; }
native_kernel device_driver::load_kernel(int device, const std::string&, const char*) { fail_kernels(device); }
void device_driver::launch(int device, native_kernel, unsigned, unsigned, std::span<void*>, native_stream) {
  fail_kernels(device);
}

native_event device_driver::create_timed_event(int device) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("device {}: events of this platform do not support timing in Isthmus", device),
                   "use the vendor's profiler");
}

double device_driver::elapsed_us(native_event, native_event) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   "events of this platform do not support timing in Isthmus", "use the vendor's profiler");
}

void* device_driver::allocate_mapped(int, std::uint64_t) { fail_mapped(); }
void* device_driver::resize_mapped(int, void*, std::uint64_t) { fail_mapped(); }
void device_driver::free_mapped(int, void*) { fail_mapped(); }

void device_driver::run_on_device(int, const std::function<void()>& work) { work(); }

device_driver* device_driver::get(isthmus_platform platform, std::string& reason) {
  static auto* const slots = new std::array<driver_slot, ISTHMUS_PLATFORM_COUNT>;
  if (platform < 0 || platform >= ISTHMUS_PLATFORM_COUNT) {
    reason = fmt::format("unknown platform {}", static_cast<int>(platform));
    return nullptr;
  }
  driver_slot& slot = (*slots)[static_cast<std::size_t>(platform)];
  std::call_once(slot.once, [&] {
    try {
      slot.driver = load(platform, slot.reason);
    } catch (const std::exception& failure) {
      slot.reason = failure.what();
    }
  });
  reason = slot.reason;
  return slot.driver;
}

}  // namespace isthmus
