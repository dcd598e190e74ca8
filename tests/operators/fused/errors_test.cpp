// Rejected descriptions and arguments: status and message on each rank.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "test_ranks.hpp"

namespace fused_test {
namespace {

isthmus_fused_description good(const member& self) {
  isthmus_fused_description description{};
  description.struct_bytes = sizeof description;
  description.m = 8 * static_cast<std::uint64_t>(self.size), description.n = 6, description.k = 4;
  description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
  return description;
}

// Expects that creating a plan fails with `status` and a message that contains `words`, and that no
// plan is returned.
void expect_refused(member& self, const isthmus_fused_description* description, isthmus_status status,
                    const char* words) {
  isthmus_fused_plan plan = reinterpret_cast<isthmus_fused_plan>(1);
  EXPECT_EQ(isthmus_fused_plan_create(self.communicator, description, &plan), status);
  EXPECT_EQ(plan, nullptr);
  EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
  EXPECT_NE(std::string(last_error().hint), "");
}

template <typename Change>
void everywhere(Change&& change, isthmus_status status, const char* words) {
  test_ranks::get().for_each_rank([&](member& self) {
    auto description = good(self);
    change(description);
    expect_refused(self, &description, status, words);
  });
}

TEST(fused_errors, invalid_descriptions_are_rejected) {
  using d = isthmus_fused_description;
  everywhere([](d& x) { x.struct_bytes = 8; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "struct_bytes = 8");
  everywhere([](d& x) { x.kind = static_cast<isthmus_fused_kind>(9); }, ISTHMUS_ERROR_INVALID_ARGUMENT,
             "kind = 9");
  everywhere([](d& x) { x.mode = static_cast<isthmus_fused_mode>(9); }, ISTHMUS_ERROR_INVALID_ARGUMENT,
             "mode = 9");
  everywhere([](d& x) { x.flags = 1u << 9; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "flags = 512");
  everywhere([](d& x) { x.input = ISTHMUS_INT32; }, ISTHMUS_ERROR_UNSUPPORTED, "input = int32");
  everywhere([](d& x) { x.output = ISTHMUS_BFLOAT16; }, ISTHMUS_ERROR_UNSUPPORTED, "output = bfloat16");
  everywhere([](d& x) { x.lda = 3; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "lda = 3");
  everywhere([](d& x) { x.ldb = 5; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "ldb = 5");
  everywhere([](d& x) { x.ldc = 5; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "ldc = 5");
  everywhere([](d& x) { x.k = std::uint64_t{1} << 40; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "k = 1099511627776");
  everywhere([](d& x) { x.chunks = 9; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "chunks = 9");
  if (test_ranks::get().size() > 1)
    everywhere([](d& x) { x.m += 1; }, ISTHMUS_ERROR_INVALID_ARGUMENT, "is not a multiple of");
  test_ranks::get().for_each_rank([](member& self) {
    expect_refused(self, nullptr, ISTHMUS_ERROR_INVALID_ARGUMENT, "description is NULL");
    EXPECT_EQ(isthmus_fused_plan_create(self.communicator, nullptr, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  });
}

TEST(fused_errors, mismatched_ranks_all_report_the_error) {
  if (test_ranks::get().size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  test_ranks::get().for_each_rank([](member& self) {
    auto description = good(self);
    if (self.rank == self.size - 1) description.k = 5;
    expect_refused(self, &description, ISTHMUS_ERROR_MISMATCH, "description->k: rank 0 has 4, rank");
    description = good(self);
    if (self.rank == 0) description.input = ISTHMUS_BFLOAT16;
    expect_refused(self, &description, ISTHMUS_ERROR_MISMATCH, "rank 0 has bfloat16, rank 1 has float16");
    description = good(self);
    if (self.rank == 0) description.n = 7;
    expect_refused(self, &description, ISTHMUS_ERROR_MISMATCH, "description->n");
    // If one rank makes a mistake, the other ranks report which one.
    description = good(self);
    if (self.rank == 0) description.lda = 1;
    expect_refused(self, &description, self.rank == 0 ? ISTHMUS_ERROR_INVALID_ARGUMENT : ISTHMUS_ERROR_REMOTE,
                   self.rank == 0 ? "lda = 1" : "refused on rank 0");
  });
}

TEST(fused_errors, invalid_arguments_are_rejected) {
  test_ranks::get().for_each_rank([](member& self) {
    auto description = good(self);
    isthmus_fused_plan plan = nullptr;
    ASSERT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), ISTHMUS_SUCCESS)
        << last_error_text();
    std::vector<std::uint16_t> a(8 * 4), b(4 * 6), gathered(description.m * 4);
    std::vector<float> c(description.m * 6, 7.0f);
    isthmus_fused_arguments good_run{};
    good_run.struct_bytes = sizeof good_run;
    good_run.a = a.data(), good_run.b = b.data(), good_run.c = c.data(), good_run.alpha = 1;
    const auto expect = [&](auto&& change, const char* words) {
      auto arguments = good_run;
      change(arguments);
      EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_INVALID_ARGUMENT) << words;
      EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
    };
    using w = isthmus_fused_arguments;
    expect([](w& x) { x.struct_bytes = 1; }, "struct_bytes = 1");
    expect([](w& x) { x.a = nullptr; }, "a is NULL");
    expect([](w& x) { x.c = nullptr; }, "c is NULL");
    expect([](w& x) { x.b = reinterpret_cast<const char*>(x.b) + 1; }, "is not aligned");
    expect([](w& x) { x.b = x.c; }, "overlaps");
    expect([](w& x) { x.gathered_a = const_cast<void*>(x.b); }, "overlaps");
    expect([](w& x) { x.view = static_cast<isthmus_fused_view>(5); }, "view = 5");
    expect([](w& x) { x.stream = &x; }, "stream");
    EXPECT_EQ(isthmus_fused_run(plan, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(c, std::vector<float>(description.m * 6, 7.0f)) << "a rejected run writes nothing";
    std::size_t needed = 0;
    EXPECT_EQ(isthmus_fused_plan_trace(plan, nullptr, 0, &needed), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_ERROR_INVALID_USAGE) << "twice";
    EXPECT_EQ(isthmus_fused_run(plan, &good_run), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_fused_plan_destroy(nullptr), ISTHMUS_SUCCESS);
  });
}

// Uses a separate communicator, because it is aborted here.
TEST(fused_errors, wait_for_missing_rank_times_out) {
  if (!test_ranks::get().is_single_process() || test_ranks::get().size() == 1)
    GTEST_SKIP() << "needs several ranks in this process";
  const std::vector<isthmus_device> devices(2, {ISTHMUS_PLATFORM_HOST, 0});
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 2;
  isthmus_communicator ranks[2];
  ASSERT_EQ(isthmus_communicator_create_all(2, devices.data(), &options, ranks), ISTHMUS_SUCCESS);
  const member members[2] = {member({0, 2, 0, ranks[0]}), member({1, 2, 0, ranks[1]})};
  isthmus_fused_plan plans[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto description = good(members[rank]);
      description.mode = ISTHMUS_FUSED_PIPELINED;
      ASSERT_EQ(isthmus_fused_plan_create(ranks[rank], &description, &plans[rank]), ISTHMUS_SUCCESS)
          << last_error_text();
    });
  for (auto& thread : threads) thread.join();
  std::vector<std::uint16_t> a(8 * 4), b(4 * 6);
  std::vector<float> c(16 * 6);
  isthmus_fused_arguments arguments{};
  arguments.struct_bytes = sizeof arguments;
  arguments.a = a.data(), arguments.b = b.data(), arguments.c = c.data(), arguments.alpha = 1;
  EXPECT_EQ(isthmus_fused_run(plans[0], &arguments), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_NE(std::string(last_error().message).find("rank 1"), std::string::npos) << last_error_text();
  EXPECT_EQ(isthmus_fused_run(plans[1], &arguments), ISTHMUS_ERROR_ABORTED)
      << "the communicator is aborted on all ranks";
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(isthmus_fused_plan_destroy(plans[rank]), ISTHMUS_SUCCESS) << last_error_text();
    EXPECT_EQ(isthmus_communicator_destroy(ranks[rank]), ISTHMUS_SUCCESS);
  }
}

}  // namespace
}  // namespace fused_test
