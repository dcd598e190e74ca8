// The C++ exception type of the Isthmus front ends, header-only over the C ABI.
#ifndef ISTHMUS_ERROR_HPP
#define ISTHMUS_ERROR_HPP

#if __cplusplus < 202002L
#error "The C++ headers of Isthmus need C++20: compile with -std=c++20, or use the C header isthmus/isthmus.h"
#else

#include <isthmus/isthmus.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isthmus {

/// Describes a failure. This is the only type that the front ends throw for failures of Isthmus. what() returns
/// the complete description in one line; the other accessors return its parts.
///
/// Thread safety: all accessors can be called from any thread.
/// Lifetime: views that accessors return are valid as long as the object exists. Copying does not throw.
/// @code
/// try {
///   ranks.allreduce(queue, send, recv, count);
/// } catch (const isthmus::exception& failure) {
///   std::fprintf(stderr, "%s\n", failure.what());
///   if (failure.code() == ISTHMUS_ERROR_TIMEOUT) ranks.abort();
/// }
/// @endcode
class exception : public std::exception {
 public:
  /// Used by front ends to copy the results of isthmus_last_error() and isthmus_last_error_ranks().
  /// @param info The failure.
  /// @param ranks The failed ranks.
  explicit exception(const isthmus_error_info& info, std::vector<int> ranks = {})
      : m_info(info), m_ranks(std::move(ranks)), m_what(compose(info)) {}

  /// Format: "isthmus: COLLECTIVE on rank R: message; hint: HINT [status, backend, native code, FILE:LINE]".
  /// Unknown parts are omitted.
  const char* what() const noexcept override { return m_what.c_str(); }

  /// Returns the status code. types.h documents each code and whether buffers may have been written.
  isthmus_status code() const noexcept { return m_info.status; }
  // Returns the collective that failed; std::nullopt if no collective was involved (setup, configuration).
  std::optional<isthmus_collective> collective() const noexcept {
    if (m_info.collective < 0) return std::nullopt;
    return static_cast<isthmus_collective>(m_info.collective);
  }
  // Returns the reporting rank; -1 if unknown.
  int rank() const noexcept { return m_info.rank; }
  /// Returns the failed ranks that the reporting rank knew of: ranks that exited, were stopped, or did not
  /// respond. At most 16 ranks, numbered as in the communicator that was called (in the parent for split and
  /// shrink). Empty if no rank caused the failure.
  const std::vector<int>& ranks() const noexcept { return m_ranks; }
  // Returns the name of the backend; empty if no backend was involved.
  std::string_view backend() const noexcept { return m_info.backend; }
  // Returns the native library's error code, or errno; 0 if there is none.
  std::int64_t native_code() const noexcept { return m_info.native_code; }
  // Returns the source location inside Isthmus, as FILE:LINE.
  std::string_view location() const noexcept { return m_info.location; }
  // Returns the error message. It names the argument, its value and the violated rule, or the operation that
  // failed. It does not repeat the details that other accessors return.
  std::string_view message() const noexcept { return m_info.message; }
  // Returns a suggested fix; may be empty.
  std::string_view hint() const noexcept { return m_info.hint; }
  /// Returns the complete error information of the C ABI.
  const isthmus_error_info& info() const noexcept { return m_info; }

 private:
  static std::string compose(const isthmus_error_info& info) {
    const char* collective = info.collective < 0
                                 ? nullptr
                                 : isthmus_collective_name(static_cast<isthmus_collective>(info.collective));
    std::string text = "isthmus: ";
    if (collective != nullptr) text += collective;
    if (info.rank >= 0) text += (collective != nullptr ? " on rank " : "rank ") + std::to_string(info.rank);
    if (collective != nullptr || info.rank >= 0) text += ": ";
    text += info.message;
    if (info.hint[0] != '\0') text += std::string("; hint: ") + info.hint;
    text += std::string(" [") + isthmus_status_name(info.status);
    if (info.backend[0] != '\0') text += std::string(", backend ") + info.backend;
    if (info.native_code != 0) text += ", native code " + std::to_string(info.native_code);
    return text + ", " + info.location + "]";
  }

  isthmus_error_info m_info;
  std::vector<int> m_ranks;
  std::string m_what;
};

namespace detail {

// The fields of a failure that a front end detects, in the format of the core's failures.
struct error_fields {
  isthmus_status status = ISTHMUS_ERROR_INVALID_ARGUMENT;
  std::string message;
  std::string hint = {};
  int collective = -1;
  int rank = -1;
};

/// Copies `text`, truncated to the capacity; the result always ends with NUL.
template <std::size_t Capacity>
void copy_text(char (&destination)[Capacity], std::string_view text) noexcept {
  const std::size_t length = text.size() < Capacity ? text.size() : Capacity - 1;
  std::memcpy(destination, text.data(), length);
  destination[length] = '\0';
}

/// Creates the exception for a failure that a front end detected, with the source location of the caller.
inline exception make_exception(const error_fields& fields,
                                std::source_location location = std::source_location::current()) {
  isthmus_error_info info{};
  info.status = fields.status;
  info.collective = fields.collective;
  info.rank = fields.rank;
  std::string_view file = location.file_name();
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
  copy_text(info.location, std::string(file) + ":" + std::to_string(location.line()));
  copy_text(info.message, fields.message);
  copy_text(info.hint, fields.hint);
  return exception(info);
}

// Returns the failed ranks of the calling thread's most recent failure.
inline std::vector<int> last_error_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

// Returns the calling thread's most recent C ABI failure as an exception.
inline exception last_exception() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return exception(info, last_error_ranks());
}

// Throws last_exception() if `status` is not ISTHMUS_SUCCESS.
inline void check(isthmus_status status) {
  if (status != ISTHMUS_SUCCESS) throw last_exception();
}

}  // namespace detail
}  // namespace isthmus

#endif
#endif
