#include "runtime/error.hpp"

#include <isthmus/isthmus.h>

#include <string_view>

namespace isthmus {
namespace {

// __FILE__ carries the build machine's folders; a reader wants the path inside the project.
std::string project_path(std::string_view location) {
  const auto cut = location.rfind("/src/");
  if (cut != std::string_view::npos) location.remove_prefix(cut + 1);
  return std::string(location);
}

}  // namespace

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

isthmus_error_info& last_error() noexcept {
  thread_local isthmus_error_info info{.status = ISTHMUS_SUCCESS,
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

void isthmus_last_error(isthmus_error_info* info) {
  if (info != nullptr) *info = isthmus::last_error();
}
