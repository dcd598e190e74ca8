// Runs the unmodified kernels of allreduce_rmsnorm.cu on simulated devices. The results must be correct, and have the bits of
// the host version.
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "backends/p2p/simulated/simulation.hpp"
#include "operators/allreduce_rmsnorm/norm_case.hpp"

namespace {

using isthmus::p2p::reduction_algorithm;
using rmsnorm_test::norm_case;
using rmsnorm_test::norm_outputs;
using rmsnorm_test::norm_shape;
using simulated::machine;

constexpr long step_limit = 200'000'000;
constexpr int blocks = 3;

// One call on every rank, with its own outputs.
class simulated_call {
 public:
  simulated_call(machine& all, const norm_shape& shape, reduction_algorithm algorithm)
      : m_all(all), m_test(shape), m_algorithm(algorithm) {
    m_outputs.assign(static_cast<std::size_t>(all.size()), m_test.poisoned_outputs());
  }

  void launch(int rank, std::uint64_t timeout_ns = 0) {
    const auto call = m_test.arguments(rank, m_outputs[static_cast<std::size_t>(rank)]);
    auto args = m_all.inbox_arguments_of<isthmus::p2p::rmsnorm_arguments>(rank, timeout_ns);
    args.send_buf = call.input;
    args.recv_buf = call.residual_out;
    args.count = call.tokens * call.hidden;
    args.tokens = call.tokens;
    args.hidden = static_cast<std::uint32_t>(call.hidden);
    args.residual = call.residual;
    args.weight = call.weight;
    args.normalized = call.normalized;
    args.is_quantized = call.output != call.datatype;
    args.scale = call.scale;
    args.scales = call.scales;
    args.eps = static_cast<float>(call.eps);
    args.round_before_weight = call.round_before_weight != 0;
    args.multiprocessors = blocks;
    ASSERT_EQ(launch_allreduce_rmsnorm(m_algorithm, *isthmus::p2p::element_of(call.datatype), args,
                                       m_all.stream(rank)),
              isthmus::p2p::gpu_success);
  }
  void launch_all() {
    for (int rank = 0; rank < m_all.size(); ++rank) launch(rank);
  }
  bool is_untouched(int rank) const {
    return m_outputs[static_cast<std::size_t>(rank)] == m_test.poisoned_outputs();
  }
  bool is_correct(int rank) const {
    return m_outputs[static_cast<std::size_t>(rank)] ==
           rmsnorm_test::run_on_host(m_test)[static_cast<std::size_t>(rank)];
  }
  void expect_correct() const {
    ASSERT_EQ(m_test.find_error(m_outputs.front()), "");
    const norm_outputs host = rmsnorm_test::run_on_host(m_test).front();
    for (const norm_outputs& each : m_outputs)
      ASSERT_TRUE(each == host) << to_string(m_test.shape()) << " differs from the host version";
  }

 private:
  machine& m_all;
  norm_case m_test;
  reduction_algorithm m_algorithm;
  std::vector<norm_outputs> m_outputs;
};

// Enqueues all calls on all ranks before any rank starts.
void run_together(machine& all, const std::vector<norm_shape>& shapes, unsigned seed) {
  std::deque<simulated_call> calls;
  for (const norm_shape& shape : shapes)
    calls
        .emplace_back(all, shape,
                      (seed++ & 1) == 0 ? reduction_algorithm::one_shot : reduction_algorithm::two_shot)
        .launch_all();
  ASSERT_TRUE(all.run(step_limit)) << "the kernels do not finish; first call: " << to_string(shapes.front());
  for (const simulated_call& each : calls) {
    each.expect_correct();
    if (testing::Test::HasFatalFailure()) return;
  }
}

class simulated_ranks : public testing::TestWithParam<int> {};

TEST_P(simulated_ranks, every_kind_is_correct) {
  unsigned seed = 1;
  const std::vector<std::uint64_t> row_lengths =
      GetParam() < 8 ? std::vector<std::uint64_t>{1, 61, 64, 300} : std::vector<std::uint64_t>{61};
  for (const std::uint64_t hidden : row_lengths)
    for (const std::uint64_t tokens : {1, 4})
      for (norm_shape shape : rmsnorm_test::kinds_of({GetParam(), tokens, hidden}))
        for (const bool is_one_shot : {true, false}) {
          machine all(GetParam(), ++seed);
          all.clear_inboxes(blocks);
          shape.seed = seed;
          run_together(all, {shape}, is_one_shot ? 0 : 1);
          if (HasFatalFailure()) return;
        }
}

// Ranks are skewed and start a call while others are still in an earlier one. Calls of many rows use all generations of the
// inbox several times.
TEST_P(simulated_ranks, back_to_back_is_correct) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    machine all(GetParam(), seed);
    all.clear_inboxes(blocks);
    std::vector<norm_shape> shapes;
    std::uint64_t number = 100 * seed;
    for (const std::uint64_t tokens : {1, 30, 2, 61, 7, 5, 90, 4, 3, 1})
      shapes.push_back(
          {GetParam(), tokens, 16 + number % 5, ISTHMUS_BFLOAT16, ISTHMUS_BFLOAT16, false, number++});
    run_together(all, shapes, seed);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(sizes, simulated_ranks, testing::Values(2, 4, 5, 8));

// Rows that need several slots of the inbox, and calls whose slots overlap with those of other rows.
TEST(long_rows, use_several_slots) {
  for (const auto& [hidden, datatype] :
       {std::pair(std::uint64_t{8200}, ISTHMUS_BFLOAT16), {16384, ISTHMUS_FLOAT16}, {4100, ISTHMUS_FLOAT32}}) {
    machine all(2, 5);
    all.clear_inboxes(blocks);
    const norm_shape row{2, 3, hidden, datatype, datatype, false, hidden};
    const norm_shape rows{2, 9, 40, datatype, datatype, false, hidden + 1};
    run_together(all, {row, rows, row}, 0);
    if (HasFatalFailure()) return;
    run_together(all, {rows, row}, 0);
    if (HasFatalFailure()) return;
  }
}

TEST(timeout, stores_nothing) {
  for (const reduction_algorithm algorithm : {reduction_algorithm::one_shot, reduction_algorithm::two_shot}) {
    machine all(2, 5);
    all.clear_inboxes(blocks);
    simulated_call first(all, {2, 1, 8, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3, true, 1}, algorithm);
    simulated_call second(all, {2, 1, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 2}, algorithm);
    first.launch(0, 1);
    second.launch(0, 1);
    ASSERT_TRUE(all.run({0}, step_limit));
    EXPECT_EQ(all.flags(0).expired, 1u);
    EXPECT_TRUE(first.is_untouched(0));
    EXPECT_TRUE(second.is_untouched(0));
  }
}

// A rank that starts after the timeout of its peer must not add words of the peer's next call.
TEST(timeout, late_rank_reads_its_own_call) {
  // With two_shot and several rows, the late rank completes its own rows.
  for (const auto& [algorithm, tokens] : {std::pair(reduction_algorithm::one_shot, std::uint64_t{1}),
                                          {reduction_algorithm::one_shot, 2},
                                          {reduction_algorithm::two_shot, 1}}) {
    machine all(2, 5);
    all.clear_inboxes(blocks);
    simulated_call first(all, {2, tokens, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 1}, algorithm);
    simulated_call second(all, {2, tokens, 8, ISTHMUS_FLOAT16, ISTHMUS_FLOAT16, false, 2}, algorithm);
    first.launch(0, 1);
    second.launch(0, 1);
    ASSERT_TRUE(all.run({0}, step_limit));
    EXPECT_TRUE(first.is_untouched(0) && second.is_untouched(0));
    first.launch(1, 1);
    ASSERT_TRUE(all.run({1}, step_limit));
    EXPECT_TRUE(first.is_untouched(1) || first.is_correct(1)) << tokens;
  }
}

TEST(abort, ends_waiting_kernels) {
  machine all(3, 6);
  all.clear_inboxes(blocks);
  simulated_call call(all, {3, 1, 8, ISTHMUS_BFLOAT16, ISTHMUS_BFLOAT16, false, 1},
                      reduction_algorithm::one_shot);
  call.launch(1);
  ASSERT_FALSE(all.run({1}, 100'000));
  all.flags(1).abort = 1;
  EXPECT_TRUE(all.run({1}, step_limit));
  EXPECT_EQ(all.flags(1).expired, 0u);
  EXPECT_TRUE(call.is_untouched(1));
}

TEST(zero_copy, is_refused) {
  isthmus::p2p::rmsnorm_arguments args{};
  args.size = 2;
  args.tokens = args.multiprocessors = 1;
  args.hidden = 8;
  EXPECT_EQ(launch_allreduce_rmsnorm(reduction_algorithm::two_shot_zero_copy,
                                     isthmus::p2p::element_type::float32, args, nullptr),
            isthmus::p2p::gpu_invalid_value);
}

}  // namespace
