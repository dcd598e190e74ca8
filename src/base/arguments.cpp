#include "base/arguments.hpp"

namespace isthmus {

error invalid_argument(const char* location, const std::string& message, const std::string& hint) {
  return make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, location, message, hint);
}

void throw_null_argument(const char* location, const char* function, const char* argument, const char* hint) {
  throw invalid_argument(location, fmt::format("{}: {} is NULL", function, argument), hint);
}

void check_device(const char* location, const char* function, isthmus_device device) {
  if (device.platform < 0 || device.platform >= ISTHMUS_PLATFORM_COUNT)
    throw invalid_argument(
        location,
        fmt::format("{}: device.platform = {} is out of range: must be in [0, {})", function,
                    static_cast<int>(device.platform), static_cast<int>(ISTHMUS_PLATFORM_COUNT)),
        "use an ISTHMUS_PLATFORM_ constant from types.h");
  if (device.ordinal < 0)
    throw invalid_argument(location,
                           fmt::format("{}: device.ordinal = {} must be >= 0", function, device.ordinal),
                           "pass the device number that the platform uses");
}

void write_json(const char* location, const char* function, const std::string& text, char* json,
                std::size_t capacity, std::size_t* required_bytes) {
  if (required_bytes != nullptr) *required_bytes = text.size() + 1;
  if (json == nullptr && capacity > 0)
    throw invalid_argument(location, fmt::format("{}: json is NULL but capacity = {}", function, capacity),
                           "pass capacity = 0 to query only the length");
  if (json != nullptr) copy_text(json, capacity, text);
}

}  // namespace isthmus
