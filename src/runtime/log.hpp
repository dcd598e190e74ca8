// The log of the core: spdlog to stderr. ISTHMUS_LOG=trace|debug|info|warn|error|off, default warn.
#pragma once

#include <spdlog/spdlog.h>

namespace isthmus {

// The process-wide logger; lives until the process ends. Thread-safe.
spdlog::logger& log() noexcept;

}  // namespace isthmus
