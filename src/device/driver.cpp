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
  if (code == gpu::success) code = api->get_count(&devices);
  if (code != gpu::success || devices == 0) {
    reason = fmt::format("{}: {}", api->title(), code == gpu::success ? "no device" : api->text(code));
    return nullptr;
  }
  // Never deleted: a driver must outlive every static object that may still free a block.
  return new gpu::gpu_driver(std::move(api), devices);
}

device_driver* load(isthmus_platform platform, std::string& reason) {
  switch (platform) {
    case ISTHMUS_PLATFORM_CUDA: return start_driver(gpu::load_cuda(reason), reason);
    case ISTHMUS_PLATFORM_HIP: return start_driver(gpu::load_hip(reason), reason);
    case ISTHMUS_PLATFORM_LEVEL_ZERO: return level_zero_driver::load(reason).release();  // never deleted either
    case ISTHMUS_PLATFORM_OPENCL:
    case ISTHMUS_PLATFORM_HOST:
    case ISTHMUS_PLATFORM_COUNT: break;
  }
  reason = "this platform has no device driver in Isthmus";
  return nullptr;
}

[[noreturn]] void fail_mapped() {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   "this driver has no blocks that grow by mapping pages",
                   "resize an ordinary block: its contents are copied");
}

[[noreturn]] void fail_kernels(int device) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("device {}: this platform runs no kernels of Isthmus' core", device),
                   "choose a backend that needs none");
}

struct driver_slot {
  std::once_flag once;
  device_driver* driver = nullptr;
  std::string reason;
};

}  // namespace

void* device_driver::native_context(int) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "this platform has no contexts", "none is needed");
}

void device_driver::enqueue_words(int device, std::span<const word_step>, native_stream) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("device {}: this platform's streams can't wait for an exact word", device),
                   "choose a backend that needs no stream memory operations");
}

std::string device_driver::architecture(int device) { fail_kernels(device); }
int device_driver::major_version() { return 0; }
native_kernel device_driver::load_kernel(int device, const std::string&, const char*) { fail_kernels(device); }
void device_driver::launch(int device, native_kernel, unsigned, unsigned, std::span<void*>, native_stream) {
  fail_kernels(device);
}

native_event device_driver::create_timed_event(int device) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("device {}: this platform's events have no time in Isthmus", device),
                   "use the vendor's profiler");
}

double device_driver::elapsed_us(native_event, native_event) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "this platform's events have no time in Isthmus",
                   "use the vendor's profiler");
}

void* device_driver::allocate_mapped(int, std::uint64_t) { fail_mapped(); }
void* device_driver::resize_mapped(int, void*, std::uint64_t) { fail_mapped(); }
void device_driver::free_mapped(int, void*) { fail_mapped(); }

void device_driver::with_device(int, const std::function<void()>& work) { work(); }

device_driver* device_driver::get(isthmus_platform platform, std::string& reason) {
  static auto* const slots = new std::array<driver_slot, ISTHMUS_PLATFORM_COUNT>;
  if (platform < 0 || platform >= ISTHMUS_PLATFORM_COUNT) {
    reason = "no such platform";
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
