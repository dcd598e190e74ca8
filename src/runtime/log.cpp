#include "runtime/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace isthmus {
namespace {

spdlog::logger* make_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  // Not registered with spdlog: the user's own loggers and patterns stay theirs. Never destroyed, so
  // that threads may still log while the process ends.
  auto* logger = new spdlog::logger("isthmus", sink);
  logger->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [isthmus %P] [%l] %v");
  logger->set_level(spdlog::level::warn);
  if (const char* wanted = std::getenv("ISTHMUS_LOG")) {
    const auto level = spdlog::level::from_str(wanted);
    const bool known = level != spdlog::level::off || std::string(wanted) == "off";
    if (known)
      logger->set_level(level);
    else
      logger->warn("ISTHMUS_LOG={} is not a level; use trace, debug, info, warn, error or off", wanted);
  }
  return logger;
}

}  // namespace

spdlog::logger& log() noexcept {
  static spdlog::logger* logger = make_logger();
  return *logger;
}

}  // namespace isthmus
