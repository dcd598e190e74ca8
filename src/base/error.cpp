#include "base/error.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

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
  destination[text.copy(destination, capacity - 1)] = '\0';
}

error make_error(isthmus_status status, const char* location, const std::string& message,
                 const std::string& hint, std::int64_t native_code) {
  isthmus_error_info info{};
  info.status = status;
  info.collective = -1;
  info.rank = -1;
  info.native_code = native_code;
  copy_text(info.location, sizeof info.location, project_path(location));
  copy_text(info.message, sizeof info.message, message);
  copy_text(info.hint, sizeof info.hint, hint);
  return error(info);
}

error current_error() {
  try {
    throw;
  } catch (const error& failure) {
    return failure;
  } catch (const std::bad_alloc&) {
    return make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE, "host memory exhausted");
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

}  // namespace isthmus
