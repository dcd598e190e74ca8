// The one C++ exception of Isthmus' front ends, header-only over the C ABI.
#ifndef ISTHMUS_ERROR_HPP
#define ISTHMUS_ERROR_HPP

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

/// Everything that is known about a failure; the only type that the front ends throw for failures of Isthmus.
/// what() is the whole story in one line. Copying never throws the original away; all accessors are safe from
/// any thread, and views live as long as the object.
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
  /// For front ends, which copy what isthmus_last_error() and isthmus_last_error_ranks() say.
  /// @param info The failure.
  /// @param ranks Its culprits.
  explicit exception(const isthmus_error_info& info, std::vector<int> ranks = {})
      : m_info(info), m_ranks(std::move(ranks)), m_what(compose(info)) {}

  /// "isthmus: COLLECTIVE on rank R: message; hint: what to do [status, backend, native code, file:line]";
  /// parts that are not known are left out.
  const char* what() const noexcept override { return m_what.c_str(); }

  /// What kind of failure; types.h says what each means and whether anything was written.
  isthmus_status code() const noexcept { return m_info.status; }
  // Which collective of THE TABLE; none when the failure belongs to no call (set-up, configuration).
  std::optional<isthmus_collective> collective() const noexcept {
    if (m_info.collective < 0) return std::nullopt;
    return static_cast<isthmus_collective>(m_info.collective);
  }
  // The rank that reports; -1 when none is known.
  int rank() const noexcept { return m_info.rank; }
  /// The culprits, as the reporting rank knew them when the failure was reported: ranks that ended, are
  /// stopped, or did not answer, 16 at most, in the numbers of the communicator that was called (of a split or
  /// a shrink the parent's). Empty where the failure is due to no rank.
  const std::vector<int>& ranks() const noexcept { return m_ranks; }
  // "" when no backend was involved.
  std::string_view backend() const noexcept { return m_info.backend; }
  // The native library's own code, or errno; 0 when there is none.
  std::int64_t native_code() const noexcept { return m_info.native_code; }
  // file:line inside Isthmus.
  std::string_view location() const noexcept { return m_info.location; }
  // Argument, value and rule, or what failed; without the details that have accessors of their own.
  std::string_view message() const noexcept { return m_info.message; }
  // What to do about it; may be "".
  std::string_view hint() const noexcept { return m_info.hint; }
  /// All of it as the C ABI has it.
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

// What a front end reports by itself, in the same form as the core's failures.
struct error_fields {
  isthmus_status status = ISTHMUS_ERROR_INVALID_ARGUMENT;
  std::string message;
  std::string hint = {};
  int collective = -1;
  int rank = -1;
};

/// Cuts what does not fit; always ends with NUL.
template <std::size_t Capacity>
void copy_text(char (&destination)[Capacity], std::string_view text) noexcept {
  const std::size_t length = text.size() < Capacity ? text.size() : Capacity - 1;
  std::memcpy(destination, text.data(), length);
  destination[length] = '\0';
}

/// What a front end reports by itself, with the place in the source that reports it.
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

// The culprits of the calling thread's latest failure.
inline std::vector<int> last_error_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

// The calling thread's latest failure of the C ABI.
inline exception last_exception() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return exception(info, last_error_ranks());
}

// Throws what the C ABI reported.
inline void check(isthmus_status status) {
  if (status != ISTHMUS_SUCCESS) throw last_exception();
}

}  // namespace detail
}  // namespace isthmus

#endif
