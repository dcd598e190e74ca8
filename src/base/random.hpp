// Unpredictable values from the kernel's random source.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/error.hpp"

namespace isthmus {

// Throws error (SYSTEM).
template <typename Value>
Value random_value() {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value))
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("getrandom failed: {}", std::strerror(errno)),
                     "check that the sandbox permits getrandom: secrets and tokens need it", errno);
  return value;
}

}  // namespace isthmus
