// Captured runs: launches with new inputs, between runs outside of the graph, against a float64 oracle.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "captured_work.hpp"
#include "gather_run.hpp"
#include "row_parallel.hpp"

namespace fused_test {
namespace {

// Ranks launch late at random. Every third run is outside of the graph.
template <typename RankRun>
void run_captured(const typename RankRun::shape& test_shape) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    RankRun run(self, test_shape);
    captured_work graph(self.stream, [&] { run.enqueue(); });
    std::mt19937 random(static_cast<unsigned>(self.rank) + 1);
    for (std::uint64_t i = 0; i < 9; ++i) {
      run.fill(seed + i);
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      i % 3 == 2 ? run.enqueue() : graph.launch();
      run.download();
      run.check();
    }
  });
}

using scatter_run = row_parallel_run<ISTHMUS_FUSED_GEMM_REDUCE_SCATTER>;

class fused_graph : public testing::Test {
 protected:
  void SetUp() override {
    if (platform() != ISTHMUS_PLATFORM_CUDA) GTEST_SKIP() << "only CUDA captures pipelined plans";
  }
};

TEST(fused_graph_hip, pipelined_runs_cannot_be_captured) {
  if (platform() == ISTHMUS_PLATFORM_CUDA) GTEST_SKIP() << "CUDA captures them";
  test_ranks::get().for_each_rank([&](member& self) {
    gather_run run(self, {.rows_per_rank = 96, .n = 40, .k = 64});
    run.fill(1);
    captured_work graph(self.stream, [&] { run.enqueue(); });
    EXPECT_THROW(graph.launch(), std::runtime_error);
    EXPECT_EQ(last_error().status, ISTHMUS_ERROR_UNSUPPORTED) << last_error_text();
    run.run();
    run.check();
  });
}

TEST_F(fused_graph, pipelined_runs_can_be_launched_repeatedly) {
  run_captured<gather_run>({.rows_per_rank = 96, .n = 40, .k = 64, .chunks = 5});
  run_captured<gather_run>(
      {.rows_per_rank = 33, .n = 10, .k = 24, .chunks = 1, .gathered = true, .sharded = true});
  run_captured<scatter_run>({.rows = 96, .n = 40, .k = 64, .chunks = 5, .bias = true});
}

// The first run allocates the workspace of a sequential plan.
TEST_F(fused_graph, sequential_runs_can_be_launched_repeatedly) {
  run_captured<gather_run>({.rows_per_rank = 33, .n = 10, .k = 24, .mode = ISTHMUS_FUSED_SEQUENTIAL});
  run_captured<scatter_run>({.rows = 33, .n = 10, .k = 24, .mode = ISTHMUS_FUSED_SEQUENTIAL});
}

// Launches that are queued without waiting must not mix their chunks.
TEST_F(fused_graph, queued_launches_get_identical_bits) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    gather_run gather(self, {.rows_per_rank = 96, .n = 40, .k = 64, .chunks = 3});
    scatter_run scatter(self, {.rows = 96, .n = 40, .k = 64, .chunks = 3});
    gather.fill(seed);
    scatter.fill(seed);
    captured_work graph(self.stream, [&] {
      gather.enqueue();
      scatter.enqueue();
      gather.enqueue();
    });
    for (int i = 0; i < 20; ++i) graph.launch();
    gather.download();
    scatter.download();
    gather.check();
    scatter.check();
  });
}

// A launch must not use the counters of an earlier run that has not been cleared, which would leave it one run behind.
TEST_F(fused_graph, launches_follow_runs_without_a_wait) {
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    gather_run gather(self, {.rows_per_rank = 96, .n = 40, .k = 64, .chunks = 2});
    scatter_run scatter(self, {.rows = 96, .n = 40, .k = 64, .chunks = 2});
    const auto enqueue_both = [&] {
      gather.enqueue();
      scatter.enqueue();
    };
    captured_work graph(self.stream, enqueue_both);
    for (std::uint64_t round = 0; round < 3; ++round) {
      gather.fill(seed + round);
      scatter.fill(seed + round);
      for (int i = 0; i < 30; ++i) i % 2 == 0 ? enqueue_both() : graph.launch();
      gather.download();
      scatter.download();
      gather.check();
      scatter.check();
    }
  });
}

}  // namespace
}  // namespace fused_test
