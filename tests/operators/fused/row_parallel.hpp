// Runs of GEMM_REDUCE_SCATTER and GEMM_ALLREDUCE, the products of a row-parallel layer, for the tests of both.
#pragma once

#include <gtest/gtest.h>

#include "block.hpp"
#include "matrices.hpp"
#include "place.hpp"
#include "run_cases.hpp"

namespace fused_test {

template <isthmus_fused_kind Kind>
struct row_parallel_shape {
  static constexpr bool is_scattered = Kind == ISTHMUS_FUSED_GEMM_REDUCE_SCATTER;

  std::uint64_t rows, n, k;  // rows of C on one rank; if `uneven`, rank r has k + r columns of A
  isthmus_datatype input = ISTHMUS_FLOAT16, output = ISTHMUS_FLOAT32;
  isthmus_matrix_layout b_layout = ISTHMUS_ROW_MAJOR;
  std::uint64_t gap = 0;  // added to all leading dimensions
  std::uint32_t chunks = 0;
  isthmus_fused_mode mode = is_scattered ? ISTHMUS_FUSED_PIPELINED : ISTHMUS_FUSED_BY_MODEL;
  bool bias = false, uneven = false;
  double alpha = 1;

  std::uint64_t rows_of_all(int size) const {
    return is_scattered ? rows * static_cast<std::uint64_t>(size) : rows;
  }
  // The first of the rows of the sum that a rank receives.
  std::uint64_t first_row(int rank) const { return is_scattered ? static_cast<std::uint64_t>(rank) * rows : 0; }
  std::uint64_t columns_of(int rank) const { return k + (uneven ? static_cast<std::uint64_t>(rank) : 0); }
  std::uint64_t columns_before(int rank) const {
    std::uint64_t columns = 0;
    for (int each = 0; each < rank; ++each) columns += columns_of(each);
    return columns;
  }
};

// One rank's plan and buffers. The products of all ranks together form one product with a longer inner dimension.
template <isthmus_fused_kind Kind>
class row_parallel_run {
 public:
  using shape = row_parallel_shape<Kind>;

  row_parallel_run(member& self, const shape& test_shape)
      : m_self(self),
        m_shape(test_shape),
        m_k(test_shape.columns_of(self.rank)),
        m_a(test_shape.input, test_shape.rows_of_all(self.size), m_k, ISTHMUS_ROW_MAJOR, m_k + test_shape.gap),
        m_b(test_shape.input, m_k, test_shape.n, test_shape.b_layout, ldb()),
        m_c(test_shape.output, test_shape.rows, test_shape.n, ISTHMUS_ROW_MAJOR, test_shape.n + c_gap()),
        m_a_data(m_a.bytes(), self.stream),
        m_b_data(m_b.bytes(), self.stream),
        m_c_data(m_c.bytes(), self.stream),
        m_bias(test_shape.bias ? test_shape.n * isthmus_datatype_bytes(test_shape.output) : 0, self.stream) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = Kind;
    description.mode = test_shape.mode;
    description.m = test_shape.rows_of_all(self.size), description.n = test_shape.n, description.k = m_k;
    description.input = test_shape.input, description.output = test_shape.output;
    description.b_layout = test_shape.b_layout;
    description.lda = m_k + test_shape.gap, description.ldb = ldb(), description.ldc = test_shape.n + c_gap();
    description.chunks = test_shape.chunks;
    if (isthmus_fused_plan_create(self.communicator, &description, &m_plan) != ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
  }
  ~row_parallel_run() { EXPECT_EQ(isthmus_fused_plan_destroy(m_plan), ISTHMUS_SUCCESS) << last_error_text(); }
  row_parallel_run(const row_parallel_run&) = delete;
  row_parallel_run& operator=(const row_parallel_run&) = delete;

  void fill(std::uint64_t seed) {
    m_seed = seed;
    const std::uint64_t first_column = m_shape.columns_before(m_self.rank);
    m_a.fill(seed, 0, m_a_data.host().data(), first_column);
    m_b.fill(seed + 1, first_column, m_b_data.host().data());
    m_c.poison(m_c_data.host().data());
    if (m_shape.bias)
      matrix(m_shape.output, 1, m_shape.n, ISTHMUS_ROW_MAJOR, 0).fill(seed + 200, 0, m_bias.host().data());
    for (block* each : {&m_a_data, &m_b_data, &m_c_data, &m_bias}) each->upload();
  }

  void enqueue(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = m_a_data.data();
    arguments.b = m_b_data.data();
    arguments.c = m_c_data.data();
    arguments.bias = m_shape.bias ? m_bias.data() : nullptr;
    arguments.alpha = m_shape.alpha;
    arguments.stream = m_self.stream;
    arguments.view = view;
    if (isthmus_fused_run(m_plan, &arguments) != ISTHMUS_SUCCESS) throw std::runtime_error(last_error_text());
  }

  // Blocking: waits for the run.
  void download() { m_c_data.download(); }

  void run(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
    enqueue(view);
    download();
  }

  void check() const {
    const std::uint64_t columns = m_shape.columns_before(m_self.size);
    const matrix a(m_shape.input, m_shape.rows, columns, ISTHMUS_ROW_MAJOR, 0);
    const matrix b(m_shape.input, columns, m_shape.n, ISTHMUS_ROW_MAJOR, 0);
    std::vector<std::byte> a_data(a.bytes()), b_data(b.bytes());
    a.fill(m_seed, m_shape.first_row(m_self.rank), a_data.data());
    b.fill(m_seed + 1, 0, b_data.data());
    const std::byte* c = m_c_data.host().data();
    const product full_product{a,
                               b,
                               m_c,
                               a_data.data(),
                               b_data.data(),
                               nullptr,
                               m_shape.bias ? m_bias.host().data() : nullptr,
                               m_shape.alpha,
                               0,
                               m_shape.output,
                               2 * m_self.size};
    EXPECT_EQ(product_error(full_product, c, 0), "") << "rank " << m_self.rank;
    EXPECT_EQ(m_c.gaps_error(c), "") << "rank " << m_self.rank;
  }

  const std::vector<std::byte>& c() const { return m_c_data.host(); }

 private:
  std::uint64_t ldb() const { return (m_shape.b_layout == ISTHMUS_ROW_MAJOR ? m_shape.n : m_k) + m_shape.gap; }
  // On devices C is dense.
  std::uint64_t c_gap() const { return platform() == ISTHMUS_PLATFORM_HOST ? m_shape.gap : 0; }

  member& m_self;
  shape m_shape;
  std::uint64_t m_k;
  matrix m_a, m_b, m_c;
  block m_a_data, m_b_data, m_c_data, m_bias;
  isthmus_fused_plan m_plan = nullptr;
  std::uint64_t m_seed = 0;
};

}  // namespace fused_test
