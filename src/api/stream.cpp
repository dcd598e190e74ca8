// C entry point of isthmus_stream_is_capturing.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <string>

#include "base/arguments.hpp"
#include "device/driver.hpp"

isthmus_status isthmus_stream_is_capturing(isthmus_device device, isthmus_stream stream, int* is_capturing) {
  constexpr const char* function = "stream_is_capturing";
  return isthmus::guard([&] {
    isthmus::check_device(ISTHMUS_HERE, function, device);
    isthmus::require_not_null(ISTHMUS_HERE, function, "is_capturing", is_capturing);
    *is_capturing = 0;
    if (isthmus::is_null_stream(stream) || device.platform == ISTHMUS_PLATFORM_HOST)
      return;  // no driver is needed for these
    std::string reason;
    isthmus::device_driver* const driver = isthmus::device_driver::get(device.platform, reason);
    if (driver == nullptr)
      throw isthmus::make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                                fmt::format("{}: {}", function, reason), "install the driver of this platform");
    *is_capturing = driver->is_capturing(device.ordinal, stream) ? 1 : 0;
  });
}
