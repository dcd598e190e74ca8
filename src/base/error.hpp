// The one error type inside the core. C++ code throws it; the C boundary (guard) turns it into a status
// and keeps the details for isthmus_last_error.
#pragma once

#include <fmt/format.h>
#include <isthmus/types.h>

#include <exception>
#include <string>

namespace isthmus {

class error : public std::exception {
 public:
  explicit error(isthmus_error_info info) : m_info(info) {}
  const char* what() const noexcept override { return m_info.message; }
  const isthmus_error_info& info() const noexcept { return m_info; }

 private:
  isthmus_error_info m_info;
};

// Where an error was raised; a plain "file:line" from ISTHMUS_HERE.
#define ISTHMUS_STRING_(x) #x
#define ISTHMUS_STRING(x) ISTHMUS_STRING_(x)
#define ISTHMUS_HERE __FILE__ ":" ISTHMUS_STRING(__LINE__)

// Builds the error; the message says argument, value and rule, the hint what to do.
error make_error(isthmus_status status, const char* location, const std::string& message,
                 const std::string& hint = {}, std::int64_t native_code = 0);

// Inside a catch block: the exception as the core's error. Of a type that is no std::exception the name is
// told.
error caught_error();

// Copies `text` into a fixed array, cut where it does not fit, always terminated.
void copy_text(char* destination, std::size_t capacity, const std::string& text) noexcept;

// The calling thread's latest failure.
isthmus_error_info& last_error() noexcept;

// Runs a C entry point: no exception leaves the library.
template <typename Function>
isthmus_status guard(Function&& function) noexcept {
  try {
    function();
    return ISTHMUS_SUCCESS;
  } catch (...) {
    last_error() = caught_error().info();
  }
  return last_error().status;
}

}  // namespace isthmus
