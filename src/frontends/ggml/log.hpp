// Log lines on standard error. The core's log is not used, because most programs into which this library is
// preloaded never load the core. ISTHMUS_LOG applies here as well.
#pragma once

#include <string>

namespace isthmus::ggml {

// Prints why a requested feature is not used. Prints each text once per process. ISTHMUS_LOG=off disables it.
void warn_once(const std::string& text) noexcept;
// Prints that Isthmus is in use. Prints nothing at ISTHMUS_LOG=warn, error or off.
void log_info(const std::string& text) noexcept;
// Prints statistics at ISTHMUS_LOG=debug or trace.
void log_debug(const std::string& text) noexcept;

}  // namespace isthmus::ggml
