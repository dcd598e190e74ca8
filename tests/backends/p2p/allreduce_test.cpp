// Runs the unmodified kernels of allreduce.cu on simulated devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "backends/p2p/simulated/simulation.hpp"
#include "oracle/check.hpp"
#include "oracle/inputs.hpp"

namespace {

using isthmus::p2p::reduction_algorithm;
using simulated::machine;
using bytes = std::vector<std::byte>;

constexpr long step_limit = 200'000'000;

struct sum_shape {
  isthmus_collective collective;
  isthmus_datatype datatype;
  std::uint64_t count;
  reduction_algorithm algorithm;
};

// One call on every rank, with its own buffers. The results are poisoned.
class simulated_call {
 public:
  simulated_call(machine& all, const sum_shape& shape, std::uint64_t seed)
      : m_all(all),
        m_shape(shape),
        m_request{
            {shape.datatype, seed % 2 == 0 ? ISTHMUS_SUM : ISTHMUS_AVG, oracle::input_class::ordinary, seed},
            {shape.collective, all.size(), root(), shape.count, {}, {}},
            0} {
    const std::size_t width = isthmus::p2p::element_bytes(type());
    for (int rank = 0; rank < all.size(); ++rank) {
      m_in.emplace_back(oracle::send_extent(m_request.shape, rank) * width);
      oracle::fill(m_request.inputs, rank, 0, m_in.back());
      m_out.emplace_back(shape.count * width, poison);
    }
  }

  void launch(int rank, std::uint64_t timeout_ns = 0) {
    auto args = m_all.inbox_arguments_of<isthmus::p2p::kernel_arguments>(rank, timeout_ns);
    args.send_buf = m_in[index(rank)].data();
    args.recv_buf = has_result(rank) ? m_out[index(rank)].data() : nullptr;
    for (int i = 0; i < m_all.size(); ++i)
      args.peer_recv_bufs[i] = m_out[index((rank + i) % m_all.size())].data();
    args.count = m_shape.count;
    if (m_request.inputs.op == ISTHMUS_AVG) args.divisor = static_cast<float>(args.size);
    ASSERT_EQ(m_shape.collective == ISTHMUS_REDUCE_SCATTER
                  ? launch_reduce_scatter(type(), type(), args, m_all.stream(rank))
                  : launch_allreduce(m_shape.algorithm, type(), type(), args, m_all.stream(rank)),
              isthmus::p2p::gpu_success);
  }
  void launch_all() {
    for (int rank = 0; rank < m_all.size(); ++rank) launch(rank);
  }
  bool is_untouched(int rank) const {
    return std::ranges::all_of(m_out[index(rank)], [](std::byte each) { return each == poison; });
  }
  // "" or the first wrong element.
  std::string error(int rank) const {
    if (!has_result(rank)) return is_untouched(rank) ? "" : "a rank without a result has stored something";
    oracle::check_request request = m_request;
    request.rank = rank;
    return oracle::find_error(request, m_out[index(rank)].data()).value_or("");
  }

 private:
  static constexpr std::byte poison{0xa5};
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  int root() const { return static_cast<int>(m_shape.count % static_cast<std::uint64_t>(m_all.size())); }
  bool has_result(int rank) const { return m_shape.collective != ISTHMUS_REDUCE || rank == root(); }
  isthmus::p2p::element_type type() const { return *isthmus::p2p::element_of(m_shape.datatype); }

  machine& m_all;
  sum_shape m_shape;
  oracle::check_request m_request;
  std::vector<bytes> m_in, m_out;
};

std::vector<sum_shape> shapes_of(isthmus_datatype datatype, std::uint64_t count) {
  return {{ISTHMUS_ALLREDUCE, datatype, count, reduction_algorithm::one_shot},
          {ISTHMUS_ALLREDUCE, datatype, count, reduction_algorithm::two_shot},
          {ISTHMUS_ALLREDUCE, datatype, count, reduction_algorithm::two_shot_zero_copy},
          {ISTHMUS_REDUCE, datatype, count, reduction_algorithm::two_shot},
          {ISTHMUS_REDUCE_SCATTER, datatype, count, reduction_algorithm::two_shot}};
}

class simulated_ranks : public testing::TestWithParam<int> {};

// All calls are queued before any rank starts, so ranks are skewed by several calls.
TEST_P(simulated_ranks, back_to_back_calls_are_correct) {
  for (const isthmus_datatype datatype : {ISTHMUS_FLOAT32, ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16}) {
    machine all(GetParam(), datatype);
    all.clear_inboxes(4);
    std::deque<simulated_call> calls;
    for (const std::uint64_t count : {1, 700, 8, 1201})
      for (const sum_shape& shape : shapes_of(datatype, count))
        calls.emplace_back(all, shape, calls.size()).launch_all();
    ASSERT_TRUE(all.run(step_limit));
    for (const simulated_call& each : calls)
      for (int rank = 0; rank < all.size(); ++rank) ASSERT_EQ(each.error(rank), "");
  }
}

INSTANTIATE_TEST_SUITE_P(sizes, simulated_ranks, testing::Values(1, 2, 3, 4, 5, 8));

// Rank 0 times out while many more calls are queued. The late rank must not add their words.
TEST(timeout, late_rank_reads_its_own_call) {
  for (const sum_shape& shape : shapes_of(ISTHMUS_FLOAT32, 1)) {
    machine all(2, 5);
    all.clear_inboxes(1);
    std::deque<simulated_call> calls;
    for (std::uint64_t call = 0; call < 20; ++call) calls.emplace_back(all, shape, call).launch(0, 1);
    ASSERT_TRUE(all.run({0}, step_limit));
    EXPECT_EQ(all.flags(0).expired, 1u);
    for (simulated_call& each : calls) {
      EXPECT_TRUE(each.is_untouched(0));
      each.launch(1, 1);
    }
    ASSERT_TRUE(all.run({1}, step_limit));
    for (const simulated_call& each : calls) EXPECT_TRUE(each.is_untouched(1) || each.error(1).empty());
  }
}

}  // namespace
