// The interrupt check of a thread, and the suspension of the program's progress function.
#include "base/interrupt.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace isthmus {
namespace {

struct check_state {
  int result = 0, calls = 0;
};

int check(void* context) {
  auto& state = *static_cast<check_state*>(context);
  ++state.calls;
  return state.result;
}

class interrupt : public testing::Test {
 protected:
  void SetUp() override { own_interrupt = {check, &m_state, {}}; }
  void TearDown() override { own_interrupt = {}; }

  check_state m_state;
};

TEST_F(interrupt, ends_waits_if_the_check_is_not_zero) {
  for (const int result : {1, 2, -1}) {
    m_state.result = result;
    EXPECT_TRUE(is_interrupted()) << result;
    EXPECT_TRUE(is_interrupted()) << "the next wait checks immediately";
  }
  EXPECT_EQ(m_state.calls, 6);
  try {
    throw_if_interrupted("the exchange");
    FAIL();
  } catch (const error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_ABORTED);
    EXPECT_EQ(std::string(failure.info().message), "the exchange was interrupted");
  }
}

TEST_F(interrupt, check_runs_at_intervals_while_it_is_zero) {
  own_interrupt.next_check = std::chrono::steady_clock::time_point::max();
  m_state.result = 1;
  EXPECT_FALSE(is_interrupted()) << "the check is not due";
  own_interrupt.next_check = {};
  m_state.result = 0;
  EXPECT_FALSE(is_interrupted());
  EXPECT_EQ(m_state.calls, 1);
  EXPECT_GT(own_interrupt.next_check, std::chrono::steady_clock::time_point{});
}

TEST_F(interrupt, belongs_to_one_thread) {
  m_state.result = 1;
  std::thread([] { EXPECT_FALSE(is_interrupted()); }).join();
  own_interrupt = {};
  EXPECT_FALSE(is_interrupted());
}

TEST(progress_suspension, nests) {
  EXPECT_FALSE(progress_suspension::is_active());
  {
    const progress_suspension outer;
    {
      const progress_suspension inner;
      EXPECT_TRUE(progress_suspension::is_active());
    }
    EXPECT_TRUE(progress_suspension::is_active()) << "the outer suspension continues";
    std::thread([] { EXPECT_FALSE(progress_suspension::is_active()); }).join();
  }
  EXPECT_FALSE(progress_suspension::is_active());
}

// isthmus_last_error() before the first failure of a thread.
TEST(last_error, is_empty_in_a_new_thread) {
  std::thread([] {
    const isthmus_error_info& info = last_error();
    EXPECT_EQ(info.status, ISTHMUS_SUCCESS);
    EXPECT_EQ(info.collective, -1);
    EXPECT_EQ(info.rank, -1);
    EXPECT_EQ(info.native_code, 0);
    for (const char* text : {info.backend, info.location, info.message, info.hint}) EXPECT_STREQ(text, "");
  }).join();
}

}  // namespace
}  // namespace isthmus
