// What the C entry points say about an argument that they refuse. `function` is the entry point's name without
// its prefix, as messages spell it.
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

// A known platform and an ordinal >= 0; whether there is such a device is for the platform to say.
void check_device(const char* location, const char* function, isthmus_device device);

// Hands `text` to a caller who passed capacity 0 to ask for the length or a buffer that may cut it.
void write_json(const char* location, const char* function, const std::string& text, char* json,
                std::size_t capacity, std::size_t* required_bytes);

}  // namespace isthmus
