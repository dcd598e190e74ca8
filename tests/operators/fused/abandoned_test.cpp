// A rank that never enters a run on devices: no stream waits forever, and no rank has to poll for the failure.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "block.hpp"
#include "captured_work.hpp"
#include "test_ranks.hpp"

namespace fused_test {
namespace {

constexpr double timeout_s = 1;

struct abandoned_case {
  const char* name;
  isthmus_fused_kind kind;
  int runs;                  // enqueued without waiting, after the last run of the other rank
  bool is_captured = false;  // all runs are launches of one graph
  bool alternates = false;   // with a plan of the other kind
};
void PrintTo(const abandoned_case& test_case, std::ostream* out) { *out << test_case.name; }

// HIP does not capture pipelined plans.
bool is_supported(const abandoned_case& test_case) {
  return !test_case.is_captured || platform() == ISTHMUS_PLATFORM_CUDA;
}

class fused_abandoned : public testing::TestWithParam<abandoned_case> {};

// Uses separate communicators, because they are aborted here.
TEST_P(fused_abandoned, streams_continue_after_the_timeout) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs two ranks in this process";
  if (!is_supported(GetParam())) GTEST_SKIP() << "only CUDA captures pipelined plans";
  const std::vector<isthmus_device> devices = {{platform(), 0}, {platform(), 1}};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = timeout_s;
  isthmus_communicator ranks[2];
  ASSERT_EQ(isthmus_communicator_create_all(2, devices.data(), &options, ranks), ISTHMUS_SUCCESS)
      << last_error_text();
  const auto run_rank = [&](int rank) {
    use_device(rank);
    void* const stream = create_stream(rank);
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = GetParam().kind;
    description.mode = ISTHMUS_FUSED_PIPELINED;
    description.m = 64, description.n = 16, description.k = 16;
    description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
    isthmus_fused_plan plan = nullptr, other_plan = nullptr;
    ASSERT_EQ(isthmus_fused_plan_create(ranks[rank], &description, &plan), ISTHMUS_SUCCESS)
        << last_error_text();
    if (GetParam().alternates) {
      description.kind = ISTHMUS_FUSED_GEMM_REDUCE_SCATTER;
      ASSERT_EQ(isthmus_fused_plan_create(ranks[rank], &description, &other_plan), ISTHMUS_SUCCESS)
          << last_error_text();
    }
    {
      block a(description.m * description.k * 2, stream), b(description.k * description.n * 2, stream),
          c(description.m * description.n * 4, stream);
      isthmus_fused_arguments arguments{};
      arguments.struct_bytes = sizeof arguments;
      arguments.a = a.data(), arguments.b = b.data(), arguments.c = c.data(), arguments.alpha = 1;
      arguments.stream = stream;
      const int runs = rank == 0 ? 1 + GetParam().runs : 1;
      int number = 0;
      const auto enqueue = [&] {
        ASSERT_EQ(isthmus_fused_run(GetParam().alternates && ++number % 2 == 0 ? other_plan : plan, &arguments),
                  ISTHMUS_SUCCESS)
            << last_error_text();
      };
      std::optional<captured_work> graph;
      if (GetParam().is_captured) graph.emplace(stream, enqueue);
      for (int run = 0; run < runs; ++run) graph ? graph->launch() : enqueue();
      synchronize(stream);  // hangs if rank 0's stream is not released
      if (rank == 0) {
        EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_TIMEOUT);
        const std::string message = last_error().message;
        EXPECT_NE(message.find("did not end within"), std::string::npos) << message;
        EXPECT_NE(message.find("missing from rank(s) 1"), std::string::npos) << message;
        EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_ABORTED);
      }
    }
    for (isthmus_fused_plan each : {plan, other_plan})
      EXPECT_EQ(isthmus_fused_plan_destroy(each), ISTHMUS_SUCCESS) << last_error_text();
    destroy_stream(stream);
  };
  std::thread second_thread(run_rank, 1);
  run_rank(0);
  second_thread.join();
  for (isthmus_communicator rank : ranks) isthmus_communicator_destroy(rank);
}

INSTANTIATE_TEST_SUITE_P(
    kinds, fused_abandoned,
    testing::Values(abandoned_case{"gather", ISTHMUS_FUSED_ALLGATHER_GEMM, 1},
                    abandoned_case{"gather_queued", ISTHMUS_FUSED_ALLGATHER_GEMM, 3},
                    abandoned_case{"gather_captured", ISTHMUS_FUSED_ALLGATHER_GEMM, 3, true},
                    abandoned_case{"plans_alternate", ISTHMUS_FUSED_ALLGATHER_GEMM, 5, false, true},
                    abandoned_case{"scatter_queued", ISTHMUS_FUSED_GEMM_REDUCE_SCATTER, 3},
                    abandoned_case{"scatter_captured", ISTHMUS_FUSED_GEMM_REDUCE_SCATTER, 3, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fused_test
