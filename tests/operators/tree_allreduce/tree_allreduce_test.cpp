// isthmus_tree_allreduce: sums, the arguments that it rejects, and its failures. tests/python/test_tree_allreduce.py checks more
// datatypes and numbers of ranks.
#include <isthmus/tree_allreduce.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/support.hpp"
#include "topology/threads.hpp"

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

// The definition: adds neighbors, then neighboring sums, until one is left.
std::vector<float> add_tree(std::vector<std::vector<float>> nodes) {
  while (nodes.size() > 1) {
    std::vector<std::vector<float>> sums;
    for (std::size_t i = 0; i < nodes.size(); i += 2) {
      sums.push_back(nodes[i]);
      if (i + 1 < nodes.size())
        for (std::size_t k = 0; k < sums.back().size(); ++k) sums.back()[k] += nodes[i + 1][k];
    }
    nodes = std::move(sums);
  }
  return nodes.front();
}

class tree_sums : public testing::TestWithParam<std::size_t> {};

// Three leaves per rank: the ranks have different numbers of partial sums.
TEST_P(tree_sums, equal_the_definition) {
  constexpr std::size_t size = 3, leaf_count = 3;
  const std::size_t count = GetParam();
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-20, 20);
  std::vector<std::vector<float>> all(size * leaf_count);
  std::array<std::vector<float>, size> leaves;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t k = 0; k < count; ++k)
      all[i].push_back((k % 2 == 0 ? 1.0F : -1.0F) * std::exp2(exponent(random)));
    leaves[i / leaf_count].insert(leaves[i / leaf_count].end(), all[i].begin(), all[i].end());
  }
  test::ranks ranks(size, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::array<std::vector<float>, size> results;
  topology::run_on_each_rank(size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    results[r].assign(count, std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(isthmus_tree_allreduce(leaves[r].data(), leaf_count, results[r].data(), count, ISTHMUS_FLOAT32,
                                     ranks[rank]),
              ISTHMUS_SUCCESS);
  });
  const std::vector<float> expected = add_tree(all);
  for (const auto& result : results) EXPECT_TRUE(result == expected);
}

// 20,000 elements: each rank adds a slice, and the last slice is shorter.
INSTANTIATE_TEST_SUITE_P(counts, tree_sums, testing::Values(1, 5, 20000));

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
}

TEST(tree_allreduce, reports_different_arguments_on_all_ranks) {
  struct arguments {
    std::uint64_t leaf_count, count;
    isthmus_datatype datatype;
    const char* text;  // of rank 1
  };
  test::ranks ranks(2, "");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  for (const arguments& other : {arguments{2, 2, ISTHMUS_FLOAT32, "leaf_count = 2 and count = 2 of float32"},
                                 arguments{1, 1, ISTHMUS_FLOAT32, "leaf_count = 1 and count = 1 of float32"},
                                 arguments{1, 0, ISTHMUS_FLOAT32, "leaf_count = 1 and count = 0 of float32"},
                                 arguments{1, 2, ISTHMUS_FLOAT16, "leaf_count = 1 and count = 2 of float16"}})
    topology::run_on_each_rank(2, [&](int rank) {
      const float leaves[4] = {};
      float result[2] = {};
      const arguments own = rank == 0 ? arguments{1, 2, ISTHMUS_FLOAT32, ""} : other;
      EXPECT_TRUE(fails(ISTHMUS_ERROR_MISMATCH, other.text, ranks[rank], leaves, own.leaf_count, result,
                        own.count, own.datatype));
    });
  topology::run_on_each_rank(2, [&](int rank) {
    EXPECT_EQ(isthmus_tree_allreduce(nullptr, 3, nullptr, 0, ISTHMUS_FLOAT16, ranks[rank]), ISTHMUS_SUCCESS);
  });
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
