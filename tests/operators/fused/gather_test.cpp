// ALLGATHER_GEMM: layouts, types and odd shapes against a float64 oracle, late ranks, bitwise reproducibility,
// and the views of a run.
#include <gtest/gtest.h>

#include <chrono>

#include "gather_run.hpp"
#include "run_cases.hpp"

namespace fused_test {
namespace {

using rank_run = gather_run;
using shape = gather_shape;

void run_case(const shape& test_shape) { run_twice<rank_run>(test_shape); }

TEST(fused_gather, types_and_layouts) {
  each_variant([](const variant& kind) {
    run_case({.rows_per_rank = 37,
              .n = 29,
              .k = 41,
              .input = kind.input,
              .output = kind.output,
              .b_layout = kind.b_layout,
              .gap = kind.gap,
              .chunks = 3,
              .mode = kind.mode,
              .bias = true,
              .gathered = kind.gap == 0,
              .alpha = 1.25,
              .beta = kind.gap == 0 ? 0.0 : -0.5});
  });
}

TEST(fused_gather, odd_shapes) {
  for (const auto& [rows, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 300, 7), std::tuple(300, 1, 3),
                                   std::tuple(130, 17, 257), std::tuple(2, 3, 1000), std::tuple(513, 8, 16)})
    for (const bool in_heap : {true, false})
      run_case({.rows_per_rank = static_cast<std::uint64_t>(rows),
                .n = static_cast<std::uint64_t>(n),
                .k = static_cast<std::uint64_t>(k),
                .in_heap = in_heap});
}

TEST(fused_gather, nothing_to_do) {
  run_case({.rows_per_rank = 0, .n = 5, .k = 4});
  run_case({.rows_per_rank = 3, .n = 0, .k = 4});
  run_case({.rows_per_rank = 3, .n = 5, .k = 0, .bias = true, .beta = 2});
  run_case({.rows_per_rank = 3, .n = 5, .k = 0, .mode = ISTHMUS_FUSED_SEQUENTIAL});
}

TEST(fused_gather, every_chunk_count) {
  for (const std::uint32_t chunks : {1u, 2u, 7u, 64u})
    run_case({.rows_per_rank = 64, .n = 12, .k = 20, .chunks = chunks, .in_heap = chunks != 7});
}

TEST(fused_gather, sharded_b_and_gathered_in_place) {
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .sharded = true});
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .mode = ISTHMUS_FUSED_SEQUENTIAL, .sharded = true});
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .in_heap = false, .in_place = true});
  run_case({.rows_per_rank = 33,
            .n = 10,
            .k = 24,
            .mode = ISTHMUS_FUSED_SEQUENTIAL,
            .in_heap = false,
            .in_place = true});
}

// An early rank must wait for exactly the rows that it needs.
TEST(fused_gather, late_ranks_get_identical_bits) {
  for (const bool in_heap : {true, false})
    run_with_delays<rank_run>(shape{
        .rows_per_rank = 96, .n = 40, .k = 64, .input = ISTHMUS_BFLOAT16, .chunks = 5, .in_heap = in_heap});
}

TEST(fused_gather, views_of_a_run) {
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL}) {
      rank_run run(self, {.rows_per_rank = 16, .n = 9, .k = 12, .mode = mode});
      run.fill(42);
      const auto previous_c = run.c();
      run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
      EXPECT_EQ(run.c(), previous_c) << "communication alone does not change C";
      run.run(ISTHMUS_FUSED_COMPUTE_ONLY);  // uses the rows that have just been gathered
      run.check();
    }
  });
}

TEST(fused_gather, info_describes_the_schedule) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .chunks = 2, .in_heap = false});
    run.fill(1);
    run.run();
    const auto info = run.info();
    EXPECT_EQ(info["mode"], self.size > 1 ? "pipelined" : "sequential");
    EXPECT_EQ(info["groups"][0]["source"], self.rank);
    EXPECT_EQ(info["groups"].size(), static_cast<std::size_t>(1 + 2 * (self.size - 1)));
    if (self.size > 1 && platform() == ISTHMUS_PLATFORM_HOST) {
      EXPECT_NE(info["notes"][0].get<std::string>().find("outside the symmetric heap"), std::string::npos);
    } else {
      EXPECT_TRUE(info["notes"].empty());
    }
    std::uint64_t rows = 0;
    for (const auto& each : info["groups"]) rows += each["rows"].get<std::uint64_t>();
    EXPECT_EQ(rows, 64u * static_cast<std::uint64_t>(self.size));
  });
}

TEST(fused_gather, info_has_predicted_and_measured_times) {
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL}) {
      rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .mode = mode, .traced = true});
      run.fill(1);
      const auto before = run.info();
      const auto& predicted_us = before["predicted_us"];
      if (platform() == ISTHMUS_PLATFORM_HOST || (self.size > 1 && mode == ISTHMUS_FUSED_PIPELINED)) {
        const double product_us = predicted_us["product"], transfer_us = predicted_us["transfer"];
        EXPECT_GT(product_us, 0);
        EXPECT_EQ(transfer_us > 0, self.size > 1);
        EXPECT_EQ(predicted_us["bound"], std::max(product_us, transfer_us));
        EXPECT_GE(predicted_us["sequential"].get<double>(), product_us + transfer_us);
      } else {
        EXPECT_TRUE(predicted_us.is_null());
      }
      for (const auto& each : before["measured_us"]) EXPECT_TRUE(each.is_null()) << "no run";
      for (const auto& [view, name] :
           {std::pair(ISTHMUS_FUSED_COMMUNICATION_ONLY, "transfer"),
            std::pair(ISTHMUS_FUSED_COMPUTE_ONLY, "product"), std::pair(ISTHMUS_FUSED_WHOLE, "whole")}) {
        EXPECT_TRUE(run.info()["measured_us"][name].is_null());
        const auto begin = std::chrono::steady_clock::now();
        run.run(view);
        const double measured_us = run.info()["measured_us"][name];
        const double limit_us =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        EXPECT_GE(measured_us, 0);
        EXPECT_LE(measured_us, limit_us);
      }
    }
  });
}

// The trace contains every copy and every product once, within the time of the run.
TEST(fused_gather, trace_contains_copies_and_products) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .chunks = 2, .traced = true});
    const auto now_us = [] {
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    for (const auto view :
         {ISTHMUS_FUSED_COMPUTE_ONLY, ISTHMUS_FUSED_WHOLE, ISTHMUS_FUSED_COMMUNICATION_ONLY}) {
      run.fill(1);
      const double begin_us = now_us();
      run.run(view);
      const auto events = run.trace()["traceEvents"];
      EXPECT_EQ(events, run.trace()["traceEvents"]) << "reading the trace twice gives the same result";
      const double end_us = now_us();
      std::size_t transfer_events = 0, compute_events = 0;
      for (const auto& each : events) {
        if (each["ph"] != "X") continue;
        (each["cat"] == "compute" ? compute_events : transfer_events) += 1;
        EXPECT_GE(each["ts"].get<double>(), begin_us - 1000);
        EXPECT_LE(each["ts"].get<double>() + each["dur"].get<double>(), end_us + 1000);
      }
      const auto remote = 2 * static_cast<std::size_t>(self.size - 1);
      if (self.size == 1) continue;  // one product and no copies
      EXPECT_EQ(compute_events, view == ISTHMUS_FUSED_COMMUNICATION_ONLY ? 0 : 1 + remote);
      EXPECT_EQ(transfer_events, view == ISTHMUS_FUSED_COMPUTE_ONLY ? 0 : remote);
    }
  });
}

}  // namespace
}  // namespace fused_test
