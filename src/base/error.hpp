// The one error type inside the core. C++ code throws it; the C boundary (guard) turns it into a status
// and keeps the details for isthmus_last_error.
#pragma once

#include <fmt/format.h>
#include <isthmus/types.h>

#include <array>
#include <exception>
#include <span>
#include <string>
#include <type_traits>

namespace isthmus {

// A failure as ranks tell it to each other, plain bytes: what the C ABI knows of it, and its culprits, the
// ranks that it is due to as far as that is known. Those of a part that a backend made for itself are ranks of
// the whole.
struct failure_info : isthmus_error_info {
  static constexpr std::size_t max_failed_ranks = 16;

  failure_info() : isthmus_error_info{} {}
  failure_info(const isthmus_error_info& info) : isthmus_error_info(info) {}

  std::span<const int> failed_ranks() const { return {m_failed_ranks.data(), m_count}; }
  // Of more than 16 the first.
  void set_failed_ranks(std::span<const int> ranks);

 private:
  std::uint32_t m_count = 0;
  std::array<int, max_failed_ranks> m_failed_ranks{};
};

static_assert(std::is_trivially_copyable_v<failure_info>, "processes share it");

class error : public std::exception {
 public:
  explicit error(const failure_info& info) : m_info(info) {}
  const char* what() const noexcept override { return m_info.message; }
  const failure_info& info() const noexcept { return m_info; }
  // The same, with its culprits.
  error with_failed_ranks(std::span<const int> failed_ranks) const {
    error copy = *this;
    copy.m_info.set_failed_ranks(failed_ranks);
    return copy;
  }

 private:
  failure_info m_info;
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
error current_error();

// Copies `text` into a fixed array, cut where it does not fit, always terminated.
void copy_text(char* destination, std::size_t capacity, const std::string& text) noexcept;

// The calling thread's latest failure.
failure_info& last_error() noexcept;

// Runs a C entry point: no exception leaves the library.
template <typename Function>
isthmus_status guard(Function&& function) noexcept {
  try {
    function();
    return ISTHMUS_SUCCESS;
  } catch (...) {
    last_error() = current_error().info();
  }
  return last_error().status;
}

}  // namespace isthmus
