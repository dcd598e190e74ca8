#include "base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/text.hpp"
#include "base/trust.hpp"

namespace isthmus {
namespace {

spdlog::logger* make_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  // Not registered with spdlog, so that the program's loggers and patterns are not affected. Never destroyed,
  // so that threads can log until the process exits.
  auto* logger = new spdlog::logger("isthmus", sink);
  logger->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [isthmus %P] [%l] %v");
  logger->set_level(spdlog::level::warn);
  if (const char* level_name = environment_variable("ISTHMUS_LOG")) {
    const auto level = spdlog::level::from_str(level_name);
    const bool is_known = level != spdlog::level::off || std::string(level_name) == "off";
    if (is_known)
      logger->set_level(level);
    else
      logger->warn("ISTHMUS_LOG={} is not a log level; use trace, debug, info, warn, error or off",
                   printable(level_name));
  }
  return logger;
}

spdlog::logger& logger() {
  static spdlog::logger* const instance = make_logger();
  return *instance;
}

spdlog::level::level_enum native_level(log_level level) noexcept {
  static_assert(static_cast<int>(log_level::error) == spdlog::level::err);
  return static_cast<spdlog::level::level_enum>(level);
}

}  // namespace

bool is_logged(log_level level) noexcept { return logger().should_log(native_level(level)); }

void write_log(log_level level, const std::string& line) {
  const std::string text = printable(line);
  logger().log(native_level(level), spdlog::string_view_t(text));
}

}  // namespace isthmus
