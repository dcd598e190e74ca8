// Arguments that isthmus_tree_allreduce rejects, and its failures. tests/python/test_tree_allreduce.py checks the sums.
#include <isthmus/tree_allreduce.h>

#include <cstring>
#include <limits>

#include "core/support.hpp"

namespace {

// Returns true if the call fails with this status, its message contains `text`, and the result is unchanged.
testing::AssertionResult fails(isthmus_status status, const char* text, isthmus_communicator communicator,
                               const void* leaves, std::uint64_t leaf_count, float* result, std::uint64_t count,
                               isthmus_datatype datatype = ISTHMUS_FLOAT32) {
  if (result != nullptr) *result = -1;
  const isthmus_status actual =
      isthmus_tree_allreduce(leaves, leaf_count, result, count, datatype, communicator);
  const isthmus_error_info error = test::last_error();
  if (actual != status || std::strstr(error.message, text) == nullptr)
    return testing::AssertionFailure() << "status " << actual << ": " << error.message;
  if (result != nullptr && *result != -1) return testing::AssertionFailure() << "the result was written";
  return testing::AssertionSuccess();
}

TEST(tree_allreduce, rejects_invalid_arguments) {
  test::ranks ranks(2, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const float leaves[4] = {};
  float result = 0;
  const auto rejects = [&](const char* text, const void* from, std::uint64_t leaf_count, float* to,
                           std::uint64_t count, isthmus_datatype datatype = ISTHMUS_FLOAT32) {
    return fails(ISTHMUS_ERROR_INVALID_ARGUMENT, text, ranks[0], from, leaf_count, to, count, datatype);
  };
  EXPECT_TRUE(rejects("leaves is NULL", nullptr, 1, &result, 1));
  EXPECT_TRUE(rejects("recv_buf is NULL", leaves, 1, nullptr, 1));
  EXPECT_TRUE(rejects("leaf_count = 0 must be at least 1", leaves, 0, &result, 1));
  EXPECT_TRUE(rejects("datatype = int8 must be a floating-point type", leaves, 1, &result, 1, ISTHMUS_INT8));
  EXPECT_TRUE(
      rejects("datatype = 99 is out of range", leaves, 1, &result, 1, static_cast<isthmus_datatype>(99)));
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(rejects("do not fit the address space", leaves, huge, &result, 1));
  EXPECT_TRUE(rejects("do not fit the address space", leaves, 2, &result, huge));
  EXPECT_TRUE(rejects("overlap", &result, 1, &result, 1));
  EXPECT_EQ(isthmus_tree_allreduce(nullptr, 3, nullptr, 0, ISTHMUS_FLOAT16, ranks[0]), ISTHMUS_SUCCESS);
}

TEST(tree_allreduce, rejects_devices_groups_and_aborted_communicators) {
  standin::reset();
  const float leaves[4] = {};
  float result = 0;
  {
    test::ranks device(1, standin::configuration(), ISTHMUS_PLATFORM_OPENCL);
    EXPECT_TRUE(fails(ISTHMUS_ERROR_UNSUPPORTED, "platform opencl is not supported, only host", device[0],
                      leaves, 1, &result, 1));
  }
  test::ranks ranks(1, "");
  isthmus_group_start();
  EXPECT_TRUE(fails(ISTHMUS_ERROR_INVALID_USAGE, "inside a group", ranks[0], leaves, 1, &result, 1));
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_communicator_abort(ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_TRUE(fails(ISTHMUS_ERROR_ABORTED, "", ranks[0], leaves, 1, &result, 1));
  EXPECT_TRUE(fails(ISTHMUS_ERROR_INVALID_USAGE, "communicator is NULL", nullptr, leaves, 1, &result, 1));
}

}  // namespace
