// Argument checks of the C entry points. `function` is the name of the entry point without the isthmus_ prefix,
// as it appears in error messages.
//
// Errors: every check throws error (INVALID_ARGUMENT).
#pragma once

#include <isthmus/types.h>

#include <string>

#include "base/error.hpp"

namespace isthmus {

error invalid_argument(const char* location, const std::string& message, const std::string& hint);

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
