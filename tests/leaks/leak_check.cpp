// Fails a test that ends with live blocks, plain or symmetric. The fixture must have released
// its blocks by then.
#include <gtest/gtest.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

namespace {

class leak_check : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    EXPECT_EQ(isthmus_memory_live_blocks(), 0U)
        << test.test_suite_name() << "." << test.name() << " leaked blocks of memory.h";
  }
};

[[maybe_unused]] const bool registered = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new leak_check);
  return true;
}();

}  // namespace
