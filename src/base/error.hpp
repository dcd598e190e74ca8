// The error type of the core. C++ code throws it. At the C boundary, guard() converts it to a status and stores
// the details for isthmus_last_error.
#pragma once

#include <fmt/format.h>
#include <isthmus/types.h>

#include <array>
#include <exception>
#include <span>
#include <string>
#include <type_traits>

#include "base/location.hpp"

namespace isthmus {

// A failure in the form that ranks exchange: the error of the C ABI and the failed ranks, if they are known.
// Trivially copyable. In a subcommunicator that a backend created, failed ranks are ranks of the parent.
struct failure_info : isthmus_error_info {
  static constexpr std::size_t max_failed_ranks = 16;

  failure_info() : isthmus_error_info{} {}
  failure_info(const isthmus_error_info& info) : isthmus_error_info(info) {}

  std::span<const int> failed_ranks() const { return {m_failed_ranks.data(), m_count}; }
  // Keeps the first max_failed_ranks ranks.
  void set_failed_ranks(std::span<const int> ranks);

 private:
  std::uint32_t m_count = 0;
  std::array<int, max_failed_ranks> m_failed_ranks{};
};

static_assert(std::is_trivially_copyable_v<failure_info>, "shared between processes");

class error : public std::exception {
 public:
  explicit error(const failure_info& info) : m_info(info) {}
  const char* what() const noexcept override { return m_info.message; }
  const failure_info& info() const noexcept { return m_info; }
  // Returns a copy of this error that names the failed ranks.
  error with_failed_ranks(std::span<const int> failed_ranks) const {
    error copy = *this;
    copy.m_info.set_failed_ranks(failed_ranks);
    return copy;
  }

 private:
  failure_info m_info;
};

// Creates an error. The message contains the argument, its value and the rule. The hint says what to do.
error make_error(isthmus_status status, const char* location, const std::string& message,
                 const std::string& hint = {}, std::int64_t native_code = 0);

// Returns whether an errno code says that the process or the system has no more descriptors or memory.
bool is_shortage(std::int64_t code) noexcept;
inline constexpr const char* shortage_hint =
    "raise the limits of this process (ulimit -n, ulimit -v) or of its container";

// Converts the current exception to an error; call it in a catch block. For a type that is not derived from
// std::exception, the message contains the name of the type.
error current_error();

// Copies `text` into a fixed-size array. Truncates if necessary and always terminates the string.
void copy_text(char* destination, std::size_t capacity, const std::string& text) noexcept;

// Returns the calling thread's most recent failure.
failure_info& last_error() noexcept;

// Runs the body of a C entry point and converts exceptions to a status, so that no exception
// leaves the library.
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

// ---- argument checks of the C entry points -----------------------------------------------------------------

// `function` is the name of the entry point without the isthmus_ prefix, as it appears in error messages. Every check
// throws error (INVALID_ARGUMENT).

error invalid_argument(const char* location, const std::string& message, const std::string& hint);

// "<what> = <value> is out of range: must be in [0, count)".
error out_of_range(const char* location, const std::string& what, long long value, long long count,
                   const std::string& hint);

[[noreturn]] void throw_null_argument(const char* location, const char* function, const char* argument,
                                      const char* hint);

template <typename Pointer>
void require_not_null(const char* location, const char* function, const char* argument, Pointer pointer,
                      const char* hint = "this argument is required") {
  if (pointer == nullptr) throw_null_argument(location, function, argument, hint);
}

// Requires a known platform and an ordinal >= 0. The platform checks whether the device exists.
void check_device(const char* location, const char* function, isthmus_device device);

// Copies `text` to the caller's buffer, truncated to `capacity`. If `json` is NULL and `capacity` is 0, returns
// only the length.
void write_json(const char* location, const char* function, const std::string& text, char* json,
                std::size_t capacity, std::size_t* required_bytes);

}  // namespace isthmus
