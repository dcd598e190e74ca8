// ISTHMUS_LOG: the level of messages, and names that are no level.
#include "base/log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace isthmus {
namespace {

using testing::ExitedWithCode;

// The variable is read once, so each level needs its own process.
[[noreturn]] void log_with(const char* level) {
  setenv("ISTHMUS_LOG", level, 1);
  log(log_level::warning, "one warning");
  log(log_level::info, "one hint");
  _exit(0);
}

TEST(log_levels, select_the_messages) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(log_with("off"), ExitedWithCode(0), testing::Eq(""));
  EXPECT_EXIT(log_with("error"), ExitedWithCode(0), testing::Eq(""));
  EXPECT_EXIT(log_with("info"), ExitedWithCode(0), "one warning\n.*one hint\n$");
  EXPECT_EXIT(log_with("loud"), ExitedWithCode(0), "ISTHMUS_LOG=loud is not a log level.*\n.*one warning\n$");
}

}  // namespace
}  // namespace isthmus
