// Fused operations with products of the test on the CPU device, compared with float64: random data, poisoned
// outputs and randomly delayed producers.
#include <chrono>
#include <cmath>
#include <isthmus/sycl/fused.hpp>
#include <limits>
#include <string>

#include "fixture.hpp"

namespace sycl_test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// A dense row-major matrix of rows x cols.
struct matrix {
  matrix(std::uint64_t rows, std::uint64_t cols) : rows(rows), cols(cols), values(rows * cols, nan) {}
  static matrix random(std::uint64_t rows, std::uint64_t cols, std::uint64_t seed) {
    matrix result(rows, cols);
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<float> numbers(-1, 1);
    for (float& value : result.values) value = numbers(engine);
    return result;
  }
  double at(std::uint64_t row, std::uint64_t col) const {
    return static_cast<double>(values[row * cols + col]);
  }

  std::uint64_t rows, cols;
  std::vector<float> values;
};

// A product in float64, term by term, with the sums of the absolute terms.
class reference_product {
 public:
  reference_product(std::uint64_t rows, std::uint64_t cols)
      : m_cols(cols), m_sums(rows * cols), m_sizes(rows * cols), m_rows(rows) {}
  void add(std::uint64_t row, std::uint64_t col, double term) {
    m_sums[row * m_cols + col] += term;
    m_sizes[row * m_cols + col] += std::abs(term);
  }
  // Adds the rows of `a` from `first` times `b`.
  void add_product(const matrix& a, std::uint64_t first, const matrix& b) {
    for (std::uint64_t row = 0; row < m_rows; ++row)
      for (std::uint64_t col = 0; col < m_cols; ++col)
        for (std::uint64_t i = 0; i < b.rows; ++i) add(row, col, a.at(first + row, i) * b.at(i, col));
  }
  // Checks every element within `roundings` float32 roundings. An element that was not written is
  // NaN and fails.
  void expect(const float* result, double roundings) const {
    for (std::size_t i = 0; i < m_sums.size(); ++i)
      ASSERT_LE(std::abs(static_cast<double>(result[i]) - m_sums[i]), roundings * 0x1p-24 * m_sizes[i])
          << "element " << i << " is " << result[i] << " instead of " << m_sums[i];
  }

 private:
  std::uint64_t m_cols;
  std::vector<double> m_sums, m_sizes;
  std::uint64_t m_rows;
};

// USM filled with NaN, with one guard element at the end that must not be written.
class usm {
 public:
  usm(std::uint64_t elements, const sycl::queue& queue)
      : m_queue(queue), m_elements(elements + 1), m_data(sycl::malloc_shared<float>(m_elements, m_queue)) {
    poison();
  }
  ~usm() {
    EXPECT_TRUE(std::isnan(m_data[m_elements - 1]));
    sycl::free(m_data, m_queue);
  }
  usm(const usm&) = delete;
  usm& operator=(const usm&) = delete;
  void poison() { std::fill_n(m_data, m_elements, nan); }
  float* data() const { return m_data; }

 private:
  sycl::queue m_queue;
  std::uint64_t m_elements;
  float* m_data;
};

// to[count x b.cols] = from[count x b.rows] * b + bias + beta * to, in double and rounded once.
void multiply_rows(const float* from, std::uint64_t count, const matrix& b, const matrix* bias, double beta,
                   float* to) {
  for (std::uint64_t row = 0; row < count; ++row)
    for (std::uint64_t col = 0; col < b.cols; ++col) {
      float& result = to[row * b.cols + col];
      double sum = bias != nullptr ? bias->at(0, col) : 0;
      if (beta != 0) sum += beta * static_cast<double>(result);
      for (std::uint64_t i = 0; i < b.rows; ++i)
        sum += static_cast<double>(from[row * b.rows + i]) * b.at(i, col);
      result = static_cast<float>(sum);
    }
}

struct matrix_shape {
  std::uint64_t rows, k, n;  // rows of each rank
  std::uint32_t chunks;
};
const matrix_shape shapes[] = {{37, 19, 11, 1}, {37, 19, 11, 3}, {37, 19, 11, 100}, {1, 300, 2, 4},
                               {8, 16, 1, 8},   {0, 5, 3, 2},    {5, 0, 3, 2}};

class fused : public ranks_of_one_process {
 protected:
  fused() {
    for (const auto& rank : comms) product_queues.push_back(persistent_queue(rank.device()));
  }
  // Runs `work` on the queue after `wait_events` and a random delay.
  template <typename Work>
  static sycl::event submit_late(sycl::queue& queue, const isthmus::dependencies& wait_events,
                                 std::mt19937& random, Work work) {
    const std::chrono::microseconds delay(random() % 2 == 0 ? 0 : random() % 2000);
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      host_task(handler, [=] {
        std::this_thread::sleep_for(delay);
        work();
      });
    });
  }
  static void wait(const std::vector<sycl::event>& events) {
    for (sycl::event event : events) event.wait();
  }

  std::vector<sycl::queue> product_queues;  // out of order
};

// Every rank has n + rank columns of B, as in a column-parallel layer. C has initial values (beta), its rows
// get a bias, and A is gathered in place or from a separate buffer.
TEST_F(fused, allgather_gemm_matches_float64) {
  for (const matrix_shape& shape : shapes)
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(testing::Message() << shape.rows << " rows, k " << shape.k << ", chunks " << shape.chunks);
      const matrix a = matrix::random(size * shape.rows, shape.k, 5);
      in_threads([&](std::size_t r) {
        const matrix b = matrix::random(shape.k, shape.n + r, 10 + r), bias = matrix::random(1, b.cols, 20 + r),
                     before = matrix::random(a.rows, b.cols, 30 + r);
        std::mt19937 random(static_cast<unsigned>(r));
        sycl::queue& products = product_queues[r];
        usm gathered(a.values.size(), products), separate(shape.rows * shape.k, products);
        const std::uint64_t own_begin = r * shape.rows * shape.k;
        float* own = in_place ? gathered.data() + own_begin : separate.data();
        const isthmus::row_shards shards(comms[r], queues[r], shape.rows, shape.k, shape.chunks);
        reference_product expected(a.rows, b.cols);
        expected.add_product(a, 0, b);
        for (std::uint64_t row = 0; row < a.rows; ++row)
          for (std::uint64_t col = 0; col < b.cols; ++col) {
            expected.add(row, col, bias.at(0, col));
            expected.add(row, col, before.at(row, col) / 2);
          }
        std::vector<float> first;
        for (int repetition = 0; repetition < 3; ++repetition) {
          gathered.poison(), separate.poison();
          std::vector<float> c = before.values;
          const sycl::event produce_event = submit_late(products, {}, random, [&, own] {
            std::copy_n(a.values.data() + own_begin, shape.rows * shape.k, own);
          });
          const auto multiply = [&](const float* from, std::uint64_t row, std::uint64_t count,
                                    const isthmus::dependencies& wait_events) {
            return submit_late(products, wait_events, random, [=, &b, &bias, &c] {
              multiply_rows(from, count, b, &bias, 0.5, c.data() + row * b.cols);
            });
          };
          wait(isthmus::allgather_gemm(comms[r], queues[r], own, gathered.data(), shards, multiply,
                                       {produce_event}));
          EXPECT_TRUE(std::equal(a.values.begin(), a.values.end(), gathered.data())) << "the gathered A";
          expected.expect(c.data(), 1.5);
          if (first.empty()) first = c;
          EXPECT_EQ(c, first) << "equal inputs must give equal bits";
        }
      });
    }
}

// Every rank has k + rank columns of A and rows of B, as in a row-parallel layer. This rank's rows get a bias.
TEST_F(fused, gemm_reduce_scatter_matches_float64) {
  for (const matrix_shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, k " << shape.k << ", chunks " << shape.chunks);
    std::vector<matrix> a, b;
    for (std::uint64_t rank = 0; rank < size; ++rank) {
      a.push_back(matrix::random(size * shape.rows, shape.k + rank, 40 + rank));
      b.push_back(matrix::random(shape.k + rank, shape.n, 50 + rank));
    }
    in_threads([&](std::size_t r) {
      const matrix bias = matrix::random(1, shape.n, 60 + r);
      std::mt19937 random(static_cast<unsigned>(r) + 7);
      sycl::queue& products = product_queues[r];
      usm partial(size * shape.rows * shape.n, products), c(shape.rows * shape.n, products);
      const isthmus::row_shards shards(comms[r], queues[r], shape.rows, shape.n, shape.chunks);
      reference_product expected(shape.rows, shape.n);
      for (std::uint64_t rank = 0; rank < size; ++rank) expected.add_product(a[rank], r * shape.rows, b[rank]);
      for (std::uint64_t row = 0; row < shape.rows; ++row)
        for (std::uint64_t col = 0; col < shape.n; ++col) expected.add(row, col, bias.at(0, col));
      std::vector<float> first;
      for (int repetition = 0; repetition < 3; ++repetition) {
        matrix own_a(a[r].rows, a[r].cols);
        partial.poison(), c.poison();
        const sycl::event produce_event =
            submit_late(products, {}, random, [&] { own_a.values = a[r].values; });
        const auto multiply = [&](std::uint64_t row, std::uint64_t count, float* to,
                                  const isthmus::dependencies& wait_events) {
          const matrix* added = shape.rows > 0 && row / shape.rows == r ? &bias : nullptr;
          return submit_late(products, wait_events, random, [=, &own_a, &b] {
            multiply_rows(own_a.values.data() + row * own_a.cols, count, b[r], added, 0, to);
          });
        };
        wait(isthmus::gemm_reduce_scatter(comms[r], queues[r], partial.data(), c.data(), shards, multiply,
                                          {produce_event}));
        expected.expect(c.data(), 3.5);  // each product and the sum are rounded
        const std::vector<float> result(c.data(), c.data() + shape.rows * shape.n);
        if (first.empty()) first = result;
        EXPECT_EQ(result, first) << "equal inputs must give equal bits";
      }
    });
  }
}

// ---- invalid input -------------------------------------------------------------------------------------

struct no_number {
  char bytes[3];
};
template <typename Element>
concept sums_products = requires(const isthmus::communicator& ranks, const sycl::queue& queue,
                                 const isthmus::row_shards& shards, Element* data) {
  isthmus::gemm_reduce_scatter(ranks, queue, data, data, shards, [](auto...) { return sycl::event(); });
};
static_assert(sums_products<float> && sums_products<sycl::half>);
static_assert(!sums_products<no_number> && !sums_products<const float>);

TEST_F(fused, different_shapes_fail_on_all_ranks) {
  const struct {
    std::uint64_t rows, columns;
    std::uint32_t chunks;
    const char* words;
  } second[] = {{5, 8, 2, "about rows: rank 0 has 4, rank 1 has 5"},
                {4, 9, 2, "about columns: rank 0 has 8, rank 1 has 9"},
                {4, 8, 3, "about chunks: rank 0 has 2, rank 1 has 3"}};
  for (const auto& other : second)
    in_threads([&](std::size_t r) {
      const auto failure = thrown_by([&] {
        if (r == 0)
          isthmus::row_shards(comms[r], queues[r], 4, 8, 2);
        else
          isthmus::row_shards(comms[r], queues[r], other.rows, other.columns, other.chunks);
      });
      EXPECT_EQ(failure.code(), ISTHMUS_ERROR_MISMATCH);
      EXPECT_NE(failure.message().find(other.words), std::string::npos) << failure.what();
      EXPECT_EQ(failure.rank(), static_cast<int>(r));
    });
}

TEST_F(fused, invalid_shapes_are_rejected) {
  in_threads([&](std::size_t r) {
    const auto none = thrown_by([&] { isthmus::row_shards(comms[r], queues[r], 4, 8, 0); });
    EXPECT_NE(none.message().find("chunks = 0"), std::string::npos) << none.what();
    const auto huge = thrown_by([&] { isthmus::row_shards(comms[r], queues[r], 1ull << 40, 1ull << 22); });
    EXPECT_NE(huge.message().find("more than 2^63"), std::string::npos) << huge.what();
  });
}

}  // namespace
}  // namespace sycl_test
