// Every test ends with zero live blocks, plain or symmetric: whatever its fixture owns is gone by then.
#include <gtest/gtest.h>
#include <isthmus/memory.h>

namespace {

class leak_check : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    EXPECT_EQ(isthmus_memory_live_blocks(), 0U)
        << test.test_suite_name() << "." << test.name() << " left blocks of memory.h behind";
  }
};

[[maybe_unused]] const bool registered = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new leak_check);
  return true;
}();

}  // namespace
