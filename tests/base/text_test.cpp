#include "base/text.hpp"

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <string>

#include "base/elements.hpp"
#include "base/error.hpp"
#include "base/location.hpp"
#include "base/log.hpp"

namespace isthmus {
namespace {

TEST(text, printable_escapes_control_characters) {
  EXPECT_EQ(printable("a\n\x1b[31m\r\t\x7f"), R"(a\n\x1b[31m\r\t\x7f)");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), R"(a\x00b)");
  EXPECT_EQ(printable("\xc2\x9b"), R"(\xc2\x9b)");  // U+009B starts a control sequence
}

TEST(text, printable_escapes_bytes_that_are_not_utf8) {
  EXPECT_EQ(printable("use=\xff"), R"(use=\xff)");
  EXPECT_EQ(printable("\xc3"), R"(\xc3)");                          // incomplete
  EXPECT_EQ(printable("\xc0\xaf"), R"(\xc0\xaf)");                  // overlong
  EXPECT_EQ(printable("\xe0\x80\xaf"), R"(\xe0\x80\xaf)");          // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), R"(\xed\xa0\x80)");          // surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), R"(\xf4\x90\x80\x80)");  // above U+10FFFF
}

TEST(text, printable_keeps_valid_text) {
  const std::string valid =
      "Gr\xc3\xb6\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x98\x80 \"\\";
  EXPECT_EQ(printable(valid), valid);
  EXPECT_EQ(printable(""), "");
}

TEST(text, truncation_keeps_whole_characters) {
  EXPECT_EQ(truncated_length("abc", 3), 3u);
  EXPECT_EQ(truncated_length("abc", 2), 2u);
  EXPECT_EQ(truncated_length("a\xe2\x82\xac", 3), 1u);
  EXPECT_EQ(truncated_length("a\xe2\x82\xac", 4), 4u);
}

TEST(text, location_of_an_error_starts_in_the_project) {
  const auto location_of = [](const char* location) {
    return std::string(make_error(ISTHMUS_ERROR_INTERNAL, location, "text").info().location);
  };
  EXPECT_EQ(location_of("/build/src/isthmus/src/core/a.cpp:3"), "src/core/a.cpp:3");
  EXPECT_EQ(location_of("src/core/a.cpp:3"), "src/core/a.cpp:3");
}

TEST(text, json_reports_the_required_bytes) {
  std::size_t required_bytes = 0;
  write_json(ISTHMUS_HERE, "info", "{}", nullptr, 0, &required_bytes);
  EXPECT_EQ(required_bytes, 3u) << "with the terminator";
  char json[] = "xxxxxx";
  write_json(ISTHMUS_HERE, "info", "{}", json, required_bytes, nullptr);
  EXPECT_STREQ(json, "{}");
  EXPECT_EQ(json[3], 'x');
  write_json(ISTHMUS_HERE, "info", "{}", json, 2, &required_bytes);
  EXPECT_STREQ(json, "{");
  EXPECT_EQ(required_bytes, 3u);
  EXPECT_THROW(write_json(ISTHMUS_HERE, "info", "{}", nullptr, 1, nullptr), error);
}

TEST(elements, sums_of_small_floats_are_wider) {
  for (const auto datatype : {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3, ISTHMUS_FLOAT8_E5M2}) {
    for (const auto op : {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_AVG})
      EXPECT_EQ(accumulation_type(datatype, op), ISTHMUS_FLOAT32);
    for (const auto op : {ISTHMUS_MIN, ISTHMUS_MAX}) EXPECT_EQ(accumulation_type(datatype, op), datatype);
  }
  for (const auto datatype : {ISTHMUS_INT8, ISTHMUS_UINT16, ISTHMUS_INT64, ISTHMUS_FLOAT32, ISTHMUS_FLOAT64})
    EXPECT_EQ(accumulation_type(datatype, ISTHMUS_SUM), datatype);
}

TEST(text, errors_and_logs_are_one_line) {
  const error failure =
      make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, "cannot read a\nb\xff", "rename \x1b[0m");
  EXPECT_STREQ(failure.info().message, R"(cannot read a\nb\xff)");
  EXPECT_STREQ(failure.info().hint, R"(rename \x1b[0m)");
  testing::internal::CaptureStderr();
  log(log_level::warning, "{}", "a\n[isthmus 1] [error] forged\x1b[2J");
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(printed.ends_with(R"([warning] a\n[isthmus 1] [error] forged\x1b[2J)"
                                "\n"))
      << printed;
  EXPECT_EQ(printed.find('\n'), printed.size() - 1);
}

}  // namespace
}  // namespace isthmus
