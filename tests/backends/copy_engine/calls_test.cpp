// Calls on ranks whose devices are threads: results, ordering, skew and graph replay.
#include <gtest/gtest.h>

#include <array>
#include <barrier>

#include "conformance/issue.hpp"
#include "oracle/number.hpp"
#include "topology.hpp"
#include "topology/algorithms.hpp"

namespace copy_engine_test {
namespace {

using conformance::test_case;

constexpr isthmus_collective collectives[] = {ISTHMUS_ALLGATHER,     ISTHMUS_ALLGATHERV, ISTHMUS_ALLTOALL,
                                              ISTHMUS_BROADCAST,     ISTHMUS_GATHER,     ISTHMUS_SCATTER,
                                              ISTHMUS_REDUCE_SCATTER};
constexpr const char* algorithms[] = {nullptr, "zero_copy", "push", "staged"};

// Draws a test case from a seed. The result is the same on all ranks.
test_case draw_case(std::uint64_t seed, int ranks) {
  const auto draw = [&](std::uint64_t salt, std::uint64_t bound) { return oracle::mix(seed, salt) % bound; };
  test_case test;
  test.collective = collectives[draw(1, std::size(collectives))];
  test.datatype = static_cast<isthmus_datatype>(draw(2, ISTHMUS_DATATYPE_COUNT));
  test.op = static_cast<isthmus_reduction_op>(draw(9, ISTHMUS_REDUCTION_OP_COUNT));
  test.special = draw(10, 4) == 0;
  constexpr std::uint64_t counts[] = {0, 1, 17, 255, 1000, 4099, 9001};
  test.count = counts[draw(3, std::size(counts))];
  test.root = static_cast<int>(draw(4, static_cast<std::uint64_t>(ranks)));
  test.in_place = draw(5, 2) == 0 && conformance::can_be_in_place(test.collective);
  test.heap = draw(6, 2) == 0;
  test.seed = oracle::mix(seed, 7) >> 1;
  return test;
}

const char* draw_algorithm(std::uint64_t seed, const test_case& test) {
  const char* name = algorithms[oracle::mix(seed, 8) % std::size(algorithms)];
  const bool only_staged = isthmus::copy_engine::unsupported_direct_reason(test.collective) != nullptr;
  return only_staged && (name == algorithms[1] || name == algorithms[2]) ? nullptr : name;
}

// Runs random calls on every rank. The ranks are synchronized only by the calls themselves.
void run_random_calls(const test_setup& setup, int calls, std::uint64_t seed) {
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    for (int i = 0; i < calls; ++i) {
      const test_case test = draw_case(oracle::mix(seed, static_cast<std::uint64_t>(i)), all.size());
      const char* name = draw_algorithm(oracle::mix(seed, static_cast<std::uint64_t>(i)), test);
      const auto error = runner.run_case(test, name);
      ASSERT_FALSE(error.has_value()) << conformance::to_string(test) << " by " << (name ? name : "automatic")
                                      << " on rank " << runner.number() << ": " << *error;
    }
  });
}

struct topology_case {
  const char* name;
  int ranks;
  isthmus::copy_engine::settings options;
  driver_behavior behavior;
};
void PrintTo(const topology_case& shape, std::ostream* out) { *out << shape.name; }

class random_calls : public testing::TestWithParam<topology_case> {};

TEST_P(random_calls, match_the_oracle) {
  test_setup setup;
  setup.ranks = GetParam().ranks;
  setup.options = GetParam().options;
  setup.behavior = GetParam().behavior;
  setup.heap_bytes = 4u << 20;
  run_random_calls(setup, setup.behavior.delay_us > 0 ? 60 : 200, 42 + static_cast<std::uint64_t>(setup.ranks));
}

// Large and small staging areas, separate and joint waits for the peers, one and several streams.
INSTANTIATE_TEST_SUITE_P(
    worlds, random_calls,
    testing::Values(topology_case{"alone", 1, {1 << 16, 4096, 1}, {}},
                    topology_case{"pair", 2, {1 << 16, 4096, 1}, {}},
                    topology_case{"pair_slow", 2, {1 << 14, 0, 1}, {false, 300, 5}},
                    topology_case{"pair_tiny_staging", 2, {2048, 1 << 20, 1}, {}},
                    topology_case{"four_in_step", 4, {8192, 1 << 20, 1}, {false, 100, 7}},
                    topology_case{"four_in_step_one_queue", 4, {8192, 1 << 20, 1}, {true, 0, 8}},
                    topology_case{"three_streams", 3, {1 << 14, 512, 0}, {}},
                    topology_case{"four_one_queue", 4, {1 << 14, 0, 0}, {true, 0, 3}},
                    topology_case{"four_one_queue_slow", 4, {1 << 13, 2000, 2}, {true, 200, 9}},
                    topology_case{"five", 5, {1 << 15, 1 << 14, 2}, {false, 100, 4}}),
    [](const auto& info) { return std::string(info.param.name); });

// Every rank enqueues many calls at its own pace, and checks the results at the end.
TEST(copy_engine, skewed_calls_do_not_overwrite_each_other) {
  constexpr int calls = 64;
  constexpr std::uint64_t count = 700;
  for (const char* name : algorithms) {
    test_setup setup;
    setup.ranks = 3;
    setup.options = {4096, 1024, 1};
    setup.behavior = {false, 120, 11};
    topology all(setup);
    all.for_each_rank([&](rank_runner& runner) {
      test_case test;
      test.collective = ISTHMUS_ALLGATHER;
      test.datatype = ISTHMUS_INT32;
      test.count = count;
      test.heap = true;
      std::vector<std::unique_ptr<conformance::rank_buffers>> buffers;
      const oracle::operation_shape shape = conformance::shape_of(test, all.size());
      const std::size_t bytes = (conformance::rank_buffers::required_bytes(test, shape) + 63) / 64 * 64;
      ASSERT_LE(bytes * calls, runner.heap().size());
      for (int i = 0; i < calls; ++i) {
        test.seed = static_cast<std::uint64_t>(100 + i) * 4;  // the seed determines the misalignment
        buffers.push_back(std::make_unique<conformance::rank_buffers>(
            test, shape, runner.number(), runner.heap().subspan(bytes * static_cast<std::size_t>(i), bytes)));
      }
      for (int i = 0; i < calls; ++i) {
        if (i % 7 == runner.number()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        ASSERT_EQ(
            runner.enqueue(conformance::operation_of(
                               test, shape, buffers[static_cast<std::size_t>(i)]->addresses(), runner.number()),
                           name),
            ISTHMUS_SUCCESS);
      }
      runner.driver().synchronize(0, runner.stream());
      for (const auto& one_call : buffers) ASSERT_EQ(one_call->find_error(true, true, false), std::nullopt);
    });
  }
}

// The order of additions determines the last bits of a sum. It must be the rank order, independent of
// arrival and chunks.
TEST(copy_engine, sums_are_computed_in_rank_order) {
  constexpr std::uint64_t count = 3001;
  for (const int ranks : {2, 4}) {
    test_setup setup;
    setup.ranks = ranks;
    setup.options = {8192, 0, 2};
    setup.behavior = {false, 150, 3};
    topology all(setup);
    std::vector<std::vector<float>> inputs(static_cast<std::size_t>(ranks));
    for (int number = 0; number < ranks; ++number) {
      auto& input = inputs[static_cast<std::size_t>(number)];
      input.resize(count * static_cast<std::size_t>(ranks));
      oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, 6}, number, 0,
                   std::as_writable_bytes(std::span(input)));
    }
    all.for_each_rank([&](rank_runner& runner) {
      const auto own = static_cast<std::size_t>(runner.number());
      std::vector<float> result(count);
      isthmus_operation operation{};
      operation.collective = ISTHMUS_REDUCE_SCATTER;
      operation.datatype = ISTHMUS_FLOAT32;
      operation.op = ISTHMUS_SUM;
      operation.count = count;
      operation.send_buf = inputs[own].data();
      operation.recv_buf = result.data();
      ASSERT_EQ(runner.run(operation, nullptr), ISTHMUS_SUCCESS);
      for (std::size_t i = 0; i < count; ++i) {
        float sum = inputs[0][own * count + i];
        for (std::size_t source = 1; source < inputs.size(); ++source) sum += inputs[source][own * count + i];
        ASSERT_EQ(result[i], sum) << "element " << i;
      }
      ASSERT_EQ(runner.run(operation, "staged"), ISTHMUS_SUCCESS);
      EXPECT_EQ(runner.compiler().compiled, 1);
    });
  }
}

TEST(copy_engine, reductions_without_compiler_are_refused) {
  test_setup setup;
  topology all(setup);
  isthmus_operation operation{};
  operation.collective = ISTHMUS_REDUCE_SCATTER;
  operation.count = 1;
  const auto index = [](const char* name) {
    return ::topology::algorithm_index(isthmus::copy_engine::algorithm_names, name);
  };
  EXPECT_EQ(all.at(0).state().supports(operation, ISTHMUS_ANY_ALGORITHM), nullptr);
  EXPECT_EQ(all.at(0).state().supports(operation, index("staged")), nullptr);
  EXPECT_NE(all.at(0).state().supports(operation, index("push")), nullptr);
  all.at(0).state().refuse_reductions("no compiler");
  EXPECT_STREQ(all.at(0).state().supports(operation, ISTHMUS_ANY_ALGORITHM), "no compiler");
  operation.collective = ISTHMUS_ALLGATHER;
  EXPECT_EQ(all.at(0).state().supports(operation, ISTHMUS_ANY_ALGORITHM), nullptr);
  operation.collective = ISTHMUS_ALLREDUCE;
  EXPECT_NE(all.at(0).state().supports(operation, ISTHMUS_ANY_ALGORITHM), nullptr);
}

// Rank 1 is slow. A command with as many copies as a rank has peers is a fetch; no other command has that many.
TEST(copy_engine, ranks_fetch_chunks_in_lockstep) {
  test_setup setup;
  setup.ranks = 4;
  setup.options = {4096, 1 << 20, 1};
  topology all(setup);
  constexpr int chunks = 8;
  std::array<std::atomic<int>, 4> end_counts{};
  std::atomic<int> ahead{0};
  for (int number = 0; number < all.size(); ++number)
    all.at(number).driver().on_copies = [&, number](std::size_t copies, bool end) {
      if (copies != end_counts.size() - 1) return;
      const int done = end_counts[static_cast<std::size_t>(number)];
      if (end) ++end_counts[static_cast<std::size_t>(number)];
      for (const auto& other : end_counts) ahead += !end && other < done ? 1 : 0;
      if (!end && number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
  all.for_each_rank([&](rank_runner& runner) {
    test_case test;
    test.collective = ISTHMUS_ALLGATHER;
    test.datatype = ISTHMUS_UINT8;
    test.count = chunks * 2048;
    const auto error = runner.run_case(test, "staged");
    ASSERT_FALSE(error.has_value()) << *error;
  });
  for (const auto& each : end_counts) EXPECT_EQ(each, chunks);
  EXPECT_EQ(ahead, 0);
}

// Captured commands are replayed with new data, interleaved with calls that are not captured.
TEST(copy_engine, captured_calls_replay_among_other_calls) {
  struct captured_kind {
    isthmus_collective collective;
    isthmus_datatype datatype;
    const char* name;
    std::uint64_t wait_all_bytes = 0;
  };
  std::vector<captured_kind> kinds{{ISTHMUS_REDUCE_SCATTER, ISTHMUS_FLOAT16, nullptr},
                                   {ISTHMUS_REDUCE_SCATTER, ISTHMUS_FLOAT16, nullptr, 1 << 20},
                                   {ISTHMUS_ALLTOALL, ISTHMUS_UINT8, "staged", 1 << 20}};
  for (const char* name : algorithms) kinds.push_back({ISTHMUS_ALLTOALL, ISTHMUS_UINT8, name});
  for (const auto& [collective, datatype, name, wait_all_bytes] : kinds) {
    test_setup setup;
    setup.ranks = 3;
    setup.options = {1 << 13, wait_all_bytes, 2};
    setup.behavior = {false, 60, 2};
    topology all(setup);
    all.for_each_rank([&, collective = collective, datatype = datatype, name = name](rank_runner& runner) {
      test_case test;
      test.collective = collective;
      test.datatype = datatype;
      test.count = 6001;
      test.heap = true;
      const oracle::operation_shape shape = conformance::shape_of(test, all.size());
      isthmus_operation operation;
      {
        const conformance::rank_buffers layout(test, shape, runner.number(), runner.heap());
        operation = conformance::operation_of(test, shape, layout.addresses(), runner.number());
      }
      runner.driver().begin_capture(runner.stream());
      ASSERT_EQ(runner.enqueue(operation, name), ISTHMUS_SUCCESS);
      const standin_driver::graph captured = runner.driver().end_capture();
      for (int i = 0; i < 12; ++i) {
        test.seed = static_cast<std::uint64_t>(i) * 4 + 1;
        if (i % 3 == 2) {
          const auto error = runner.run_case(test, name);
          ASSERT_FALSE(error.has_value()) << *error;
          continue;
        }
        test.seed = 1;
        const conformance::rank_buffers buffers(test, shape, runner.number(), runner.heap());
        runner.driver().launch(captured, runner.stream());
        runner.driver().synchronize(0, runner.stream());
        ASSERT_EQ(buffers.find_error(true, true, false), std::nullopt);
      }
    });
  }
}

TEST(copy_engine, null_stream_and_changing_streams_keep_order) {
  test_setup setup;
  setup.behavior = {false, 100, 8};
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    const std::array<isthmus::native_stream, 3> streams = {
        nullptr, runner.stream(), runner.driver().create_stream(0, isthmus::stream_priority::normal)};
    constexpr std::uint64_t count = 300;
    std::vector<std::uint32_t> values(count * 2);
    for (std::uint32_t round = 0; round < 30; ++round) {
      const isthmus::native_stream stream = streams[round % 3];
      isthmus_operation operation{};
      operation.collective = ISTHMUS_ALLGATHER;
      operation.datatype = ISTHMUS_UINT32;
      operation.count = count;
      operation.recv_buf = values.data();
      operation.send_buf = values.data() + count * static_cast<std::size_t>(runner.number());
      operation.stream = stream;
      auto* own = values.data() + count * static_cast<std::size_t>(runner.number());
      // Enqueued before the call on its stream, so the call must be ordered after it.
      runner.driver().run_on(stream, [own, round](const auto&) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        std::fill_n(own, count, round);
      });
      const int algorithm = ISTHMUS_ANY_ALGORITHM;
      ASSERT_EQ(runner.state().enqueue(&operation, &algorithm, 1), ISTHMUS_SUCCESS);
      runner.driver().synchronize(0, stream);
      for (std::uint32_t value : values) ASSERT_EQ(value, round);
    }
  });
}

TEST(copy_engine, in_place_calls_copy_to_peers_only) {
  test_setup setup;
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    test_case test;
    test.collective = ISTHMUS_ALLGATHER;
    test.datatype = ISTHMUS_FLOAT32;
    test.count = 1000;
    test.in_place = test.heap = true;
    const int previous_count = runner.driver().copies();
    ASSERT_EQ(runner.run_case(test, nullptr), std::nullopt);
    EXPECT_EQ(runner.driver().copies() - previous_count, 1);
  });
}

// The commands determine the cost of a call: two lists of words, a copy, and two for the order
//   among other calls.
TEST(copy_engine, small_call_in_the_heap_needs_five_commands) {
  test_setup setup;
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    test_case test;
    test.collective = ISTHMUS_ALLGATHER;
    test.datatype = ISTHMUS_INT8;
    test.count = 64;
    test.in_place = test.heap = true;
    ASSERT_EQ(runner.run_case(test, nullptr), std::nullopt);
    const int previous_count = runner.driver().commands();
    ASSERT_EQ(runner.run_case(test, nullptr), std::nullopt);
    EXPECT_EQ(runner.driver().commands() - previous_count, 5);
  });
}

TEST(copy_engine, staged_fallback_of_zero_copy_is_logged) {
  test_setup setup;
  topology all(setup);
  all.for_each_rank([&](rank_runner& runner) {
    test_case test;
    test.collective = ISTHMUS_ALLGATHER;
    test.datatype = ISTHMUS_INT8;
    test.count = 64;
    ASSERT_EQ(runner.run_case(test, "zero_copy"), std::nullopt);
    ASSERT_EQ(runner.logged.size(), 1u);
    EXPECT_NE(runner.logged[0].find("not in the symmetric heap"), std::string::npos) << runner.logged[0];
  });
}

}  // namespace
}  // namespace copy_engine_test
