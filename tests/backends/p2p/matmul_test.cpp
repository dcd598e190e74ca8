// Runs the unmodified kernel of matmul_allreduce.cu on simulated devices, and compares the results with float64.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "backends/p2p/simulated/simulation.hpp"
#include "oracle/number.hpp"

namespace {

using simulated::machine;

constexpr long step_limit = 400'000'000;
constexpr int blocks = 3;

struct shape {
  std::uint32_t rows, columns, inner;  // rank r has `inner` + r
  isthmus_datatype datatype = ISTHMUS_BFLOAT16;
  std::uint32_t gap = 0;   // added to the leading dimensions
  std::uint32_t skew = 0;  // elements before the first one
  bool has_bias = false;
  float alpha = 1;
};
void PrintTo(const shape& value, std::ostream* out) {
  *out << value.rows << " x " << value.columns << " x " << value.inner << " "
       << isthmus_datatype_name(value.datatype) << " gap " << value.gap << " skew " << value.skew;
}

std::uint16_t bits_of(isthmus_datatype datatype, double value) {
  const auto rounded = static_cast<float>(oracle::round_to(oracle::format_of(datatype), value));
  std::uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  if (datatype == ISTHMUS_BFLOAT16) return static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t magnitude = bits & 0x7fffffffu;  // the test has no subnormal numbers
  return static_cast<std::uint16_t>(bits >> 31 << 15 | (magnitude == 0 ? 0 : (magnitude - 0x38000000u) >> 13));
}

// A matrix with random elements, and NaN around them.
class matrix {
 public:
  matrix(const shape& test, std::uint32_t rows, std::uint32_t columns, std::mt19937& random)
      : m_datatype(test.datatype),
        m_skew(test.skew),
        m_leading(columns + test.gap),
        m_elements(test.skew + std::size_t{rows} * m_leading + 8, 0xffff) {
    for (std::uint32_t row = 0; row < rows; ++row)
      for (std::uint32_t column = 0; column < columns; ++column)
        m_elements[index(row, column)] = bits_of(
            m_datatype, (1 + static_cast<double>(random() % 1000) / 1000) * (random() % 2 == 0 ? 1 : -1));
  }
  const std::uint16_t* data() const { return m_elements.data() + m_skew; }
  std::uint32_t leading() const { return m_leading; }
  double operator()(std::uint32_t row, std::uint32_t column) const {
    return static_cast<double>(
        oracle::decode(m_datatype, reinterpret_cast<const std::byte*>(&m_elements[index(row, column)])));
  }

 private:
  std::size_t index(std::uint32_t row, std::uint32_t column) const {
    return m_skew + std::size_t{row} * m_leading + column;
  }

  isthmus_datatype m_datatype;
  std::uint32_t m_skew, m_leading;
  std::vector<std::uint16_t> m_elements;
};

// One call on every rank.
class simulated_call {
 public:
  simulated_call(machine& all, const shape& test, unsigned seed) : m_all(all), m_test(test) {
    std::mt19937 random(seed);
    for (int rank = 0; rank < all.size(); ++rank) {
      m_a.emplace_back(test, test.rows, inner(rank), random);
      m_b.emplace_back(test, test.columns, inner(rank), random);
      m_bias.emplace_back(test, 1, test.columns, random);
      m_c.emplace_back(test.skew + std::size_t{test.rows} * test.columns + 8, 0xffff);
    }
  }
  void launch(int rank, std::uint64_t timeout_ns = 0) {
    const auto r = static_cast<std::size_t>(rank);
    auto args = m_all.inbox_arguments_of<isthmus::p2p::product_arguments>(rank, timeout_ns);
    args.recv_buf = m_c[r].data() + m_test.skew;
    args.rows = m_test.rows, args.columns = m_test.columns, args.inner = inner(rank);
    args.a = m_a[r].data(), args.b = m_b[r].data();
    args.lda = m_a[r].leading(), args.ldb = m_b[r].leading();
    args.bias = m_test.has_bias && rank == 0 ? m_bias[0].data() : nullptr;
    args.alpha = m_test.alpha;
    args.multiprocessors = blocks;
    ASSERT_EQ(launch_matmul_allreduce(*isthmus::p2p::element_of(m_test.datatype), args, m_all.stream(rank)),
              isthmus::p2p::gpu_success);
  }
  void launch_all() {
    for (int rank = 0; rank < m_all.size(); ++rank) launch(rank);
  }
  bool is_untouched(int rank) const {
    const auto& c = m_c[static_cast<std::size_t>(rank)];
    return c == std::vector<std::uint16_t>(c.size(), 0xffff);
  }
  // All ranks have the same bits, and the first one the right numbers.
  void expect_correct() const {
    for (const auto& each : m_c) ASSERT_EQ(each, m_c.front()) << testing::PrintToString(m_test);
    for (std::size_t i = 0; i < m_c[0].size(); ++i) {
      if (i < m_test.skew || i >= m_test.skew + std::size_t{m_test.rows} * m_test.columns) {
        ASSERT_EQ(m_c[0][i], 0xffff) << "outside of the result";
      }
    }
    for (std::uint32_t row = 0; row < m_test.rows; ++row)
      for (std::uint32_t column = 0; column < m_test.columns; ++column) expect_correct(row, column);
  }

 private:
  std::uint32_t inner(int rank) const {
    return m_test.inner == 0 ? 0 : m_test.inner + static_cast<std::uint32_t>(rank) * m_rank_step;
  }
  // Every contribution and the sum are rounded to the datatype.
  void expect_correct(std::uint32_t row, std::uint32_t column) const {
    const double unit = m_test.datatype == ISTHMUS_BFLOAT16 ? 0x1p-8 : 0x1p-11;
    double sum = 0, bound = 0;
    for (std::size_t rank = 0; rank < m_c.size(); ++rank) {
      double product = 0, magnitude = 0;
      for (std::uint32_t k = 0; k < inner(static_cast<int>(rank)); ++k) {
        product += m_a[rank](row, k) * m_b[rank](column, k);
        magnitude += std::abs(m_a[rank](row, k) * m_b[rank](column, k));
      }
      product *= static_cast<double>(m_test.alpha);
      if (m_test.has_bias && rank == 0) product += m_bias[0](0, column);
      sum += product;
      bound += unit * std::abs(product) + (2 * std::abs(static_cast<double>(m_test.alpha)) * magnitude + 4) *
                                              0x1p-24 * (inner(static_cast<int>(rank)) + 8);
    }
    const auto* const element =
        reinterpret_cast<const std::byte*>(&m_c[0][m_test.skew + std::size_t{row} * m_test.columns + column]);
    const auto result = static_cast<double>(oracle::decode(m_test.datatype, element));
    ASSERT_LE(std::abs(result - sum), 1.01 * (bound + unit * std::abs(sum)))
        << testing::PrintToString(m_test) << " element " << row << ", " << column;
  }

  static constexpr std::uint32_t m_rank_step = 8;
  machine& m_all;
  shape m_test;
  std::vector<matrix> m_a, m_b, m_bias;
  std::vector<std::vector<std::uint16_t>> m_c;
};

// Enqueues all calls on all ranks before any rank starts.
void run_together(machine& all, const std::vector<shape>& shapes, unsigned seed) {
  std::deque<simulated_call> calls;
  for (const shape& each : shapes) calls.emplace_back(all, each, ++seed).launch_all();
  ASSERT_TRUE(all.run(step_limit)) << "the kernels do not finish; first call: "
                                   << testing::PrintToString(shapes.front());
  for (const simulated_call& each : calls) {
    each.expect_correct();
    if (testing::Test::HasFatalFailure()) return;
  }
}

class simulated_ranks : public testing::TestWithParam<int> {};

TEST_P(simulated_ranks, every_shape_is_correct) {
  unsigned seed = 1;
  for (const isthmus_datatype datatype : {ISTHMUS_BFLOAT16, ISTHMUS_FLOAT16})
    for (const shape& each :
         {shape{1, 64, 256}, shape{8, 60, 40, datatype, 8, 0, true},
          shape{9, 8, 520, datatype, 3, 1, true, -0.75f}, shape{16, 72, 1, datatype, 0, 8}, shape{3, 1, 7},
          shape{4, 24, 13, datatype, 3}, shape{2, 70, 0, datatype, 0, 0, true}}) {
      machine all(GetParam(), ++seed);
      all.clear_inboxes(blocks);
      shape test = each;
      test.datatype = datatype;
      run_together(all, {test}, seed);
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(sizes, simulated_ranks, testing::Values(2, 4, 5, 8));

// Ranks are skewed and start a call while others are still in an earlier one. Calls of many columns use all generations of
// the inbox several times.
TEST(calls, back_to_back_are_correct) {
  for (unsigned seed = 1; seed <= 2; ++seed) {
    machine all(2, seed);
    all.clear_inboxes(blocks);
    std::vector<shape> shapes;
    for (const std::uint32_t columns : {64, 1000, 8, 4000, 130})
      shapes.push_back({1 + columns % 3, columns, 24});
    run_together(all, shapes, 100 * seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(timeout, stores_nothing) {
  machine all(2, 5);
  all.clear_inboxes(blocks);
  simulated_call first(all, {2, 64, 16}, 1), second(all, {1, 64, 16}, 2);
  first.launch(0, 1);
  second.launch(0, 1);
  ASSERT_TRUE(all.run({0}, step_limit));
  EXPECT_EQ(all.flags(0).expired, 1u);
  EXPECT_TRUE(first.is_untouched(0));
  EXPECT_TRUE(second.is_untouched(0));
}

}  // namespace
