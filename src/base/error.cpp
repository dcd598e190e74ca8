#include "base/error.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

#include "base/text.hpp"

namespace isthmus {
namespace {

// Strips the folders of the build machine from __FILE__.
std::string project_path(std::string_view location) {
  const auto prefix_end = location.rfind("/src/");
  if (prefix_end != std::string_view::npos) location.remove_prefix(prefix_end + 1);
  return std::string(location);
}

std::string demangle(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : mangled;
}

}  // namespace

void failure_info::set_failed_ranks(std::span<const int> ranks) {
  m_count = static_cast<std::uint32_t>(std::min(ranks.size(), max_failed_ranks));
  std::copy_n(ranks.begin(), m_count, m_failed_ranks.begin());
}

void copy_text(char* destination, std::size_t capacity, const std::string& text) noexcept {
  if (capacity == 0) return;
  destination[text.copy(destination, truncated_length(text, capacity - 1))] = '\0';
}

error make_error(isthmus_status status, const char* location, const std::string& message,
                 const std::string& hint, std::int64_t native_code) {
  isthmus_error_info info{};
  info.status = status;
  info.collective = -1;
  info.rank = -1;
  info.native_code = native_code;
  copy_text(info.location, sizeof info.location, project_path(location));
  copy_text(info.message, sizeof info.message, printable(message));
  copy_text(info.hint, sizeof info.hint, printable(hint));
  return error(info);
}

bool is_shortage(std::int64_t code) noexcept {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

error current_error() {
  try {
    throw;
  } catch (const error& failure) {
    return failure;
  } catch (const std::bad_alloc&) {
    return make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE, "host memory exhausted",
                      "free memory, or raise the limits of the process (ulimit -v) or of its container");
  } catch (const std::system_error& failure) {
    return make_error(ISTHMUS_ERROR_INTERNAL, ISTHMUS_HERE, failure.what(), {}, failure.code().value());
  } catch (const std::exception& failure) {
    return make_error(ISTHMUS_ERROR_INTERNAL, ISTHMUS_HERE, failure.what());
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return make_error(ISTHMUS_ERROR_INTERNAL, ISTHMUS_HERE,
                      fmt::format("an exception of type {}", type == nullptr ? "?" : demangle(type->name())));
  }
}

failure_info& last_error() noexcept {
  thread_local failure_info info = isthmus_error_info{.status = ISTHMUS_SUCCESS,
                                                      .collective = -1,
                                                      .rank = -1,
                                                      .native_code = 0,
                                                      .backend = {},
                                                      .location = {},
                                                      .message = {},
                                                      .hint = {}};
  return info;
}

error invalid_argument(const char* location, const std::string& message, const std::string& hint) {
  return make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, location, message, hint);
}

error out_of_range(const char* location, const std::string& what, long long value, long long count,
                   const std::string& hint) {
  return invalid_argument(location,
                          fmt::format("{} = {} is out of range: must be in [0, {})", what, value, count), hint);
}

void throw_null_argument(const char* location, const char* function, const char* argument, const char* hint) {
  throw invalid_argument(location, fmt::format("{}: {} is NULL", function, argument), hint);
}

void check_device(const char* location, const char* function, isthmus_device device) {
  if (device.platform < 0 || device.platform >= ISTHMUS_PLATFORM_COUNT)
    throw out_of_range(location, fmt::format("{}: device.platform", function),
                       static_cast<int>(device.platform), ISTHMUS_PLATFORM_COUNT,
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
