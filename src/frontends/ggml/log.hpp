// Lines to stderr. The core's log is not used: this library is preloaded into programs that never get as far
// as needing the core. ISTHMUS_LOG is obeyed all the same.
#pragma once

#include <string>

namespace isthmus::ggml {

// Why something that was asked for is not done. Each text once in a process; nothing at ISTHMUS_LOG=off.
void warn_once(const std::string& text) noexcept;
// That Isthmus is at work. Nothing at ISTHMUS_LOG=warn, error or off.
void log_info(const std::string& text) noexcept;
// Figures for whoever looks closer: at ISTHMUS_LOG=debug or trace.
void log_debug(const std::string& text) noexcept;

}  // namespace isthmus::ggml
