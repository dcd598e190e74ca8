// A rank that never comes, on devices: nobody's stream waits for ever, and nobody has to ask.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "block.hpp"
#include "world.hpp"

namespace fused_test {
namespace {

constexpr double timeout_s = 1;

struct abandoned_case {
  const char* name;
  isthmus_fused_kind kind;
  int runs;  // that are enqueued without waiting, after the other rank's last one
};
void PrintTo(const abandoned_case& one, std::ostream* out) { *out << one.name; }

class fused_abandoned : public testing::TestWithParam<abandoned_case> {};

// Communicators of its own: they are poisoned here.
TEST_P(fused_abandoned, the_streams_go_on_after_the_timeout) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs two ranks here";
  const std::vector<isthmus_device> devices = {{platform(), 0}, {platform(), 1}};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = timeout_s;
  isthmus_communicator ranks[2];
  ASSERT_EQ(isthmus_communicator_create_all(2, devices.data(), &options, ranks), ISTHMUS_SUCCESS)
      << last_error_text();
  const auto play = [&](int rank) {
    use_device(rank);
    void* const stream = create_stream(rank);
    isthmus_fused_description asked{};
    asked.struct_bytes = sizeof asked;
    asked.kind = GetParam().kind;
    asked.mode = ISTHMUS_FUSED_PIPELINED;
    asked.m = 64, asked.n = 16, asked.k = 16;
    asked.input = ISTHMUS_FLOAT16, asked.output = ISTHMUS_FLOAT32;
    isthmus_fused_plan plan = nullptr;
    ASSERT_EQ(isthmus_fused_plan_create(ranks[rank], &asked, &plan), ISTHMUS_SUCCESS) << last_error_text();
    {
      block a(asked.m * asked.k * 2, stream), b(asked.k * asked.n * 2, stream),
          c(asked.m * asked.n * 4, stream);
      isthmus_fused_arguments arguments{};
      arguments.struct_bytes = sizeof arguments;
      arguments.a = a.data(), arguments.b = b.data(), arguments.c = c.data(), arguments.alpha = 1;
      arguments.stream = stream;
      const int runs = rank == 0 ? 1 + GetParam().runs : 1;
      for (int run = 0; run < runs; ++run)
        ASSERT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_SUCCESS) << last_error_text();
      synchronize(stream);  // the test hangs when rank 0's stream is not released
      if (rank == 0) {
        EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_ERROR_TIMEOUT);
        EXPECT_NE(std::string(last_error().message).find("did not end within"), std::string::npos)
            << last_error_text();
        EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_ABORTED);
      }
    }
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS) << last_error_text();
    destroy_stream(stream);
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  for (isthmus_communicator rank : ranks) isthmus_communicator_destroy(rank);
}

INSTANTIATE_TEST_SUITE_P(kinds, fused_abandoned,
                         testing::Values(abandoned_case{"gather", ISTHMUS_FUSED_ALLGATHER_GEMM, 1},
                                         abandoned_case{"gather_queued", ISTHMUS_FUSED_ALLGATHER_GEMM, 3},
                                         abandoned_case{"scatter_queued", ISTHMUS_FUSED_GEMM_REDUCE_SCATTER, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fused_test
