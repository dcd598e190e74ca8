// GEMM_ALLREDUCE: types, layouts and odd shapes against a float64 oracle, late ranks, equal bits on all ranks, and the
// views of a run.
#include <gtest/gtest.h>

#include <cstring>

#include "block.hpp"
#include "matrices.hpp"
#include "place.hpp"
#include "run_cases.hpp"

namespace fused_test {
namespace {

struct shape {
  std::uint64_t m, n, k;  // if `uneven`, rank r has k + r columns of A
  isthmus_datatype input = ISTHMUS_FLOAT16, output = ISTHMUS_FLOAT32;
  isthmus_matrix_layout b_layout = ISTHMUS_ROW_MAJOR;
  std::uint64_t gap = 0;  // added to all leading dimensions
  isthmus_fused_mode mode = ISTHMUS_FUSED_BY_MODEL;
  bool bias = false, uneven = false;
  double alpha = 1;

  std::uint64_t columns_of(int rank) const { return k + (uneven ? static_cast<std::uint64_t>(rank) : 0); }
  std::uint64_t columns_before(int rank) const {
    std::uint64_t columns = 0;
    for (int each = 0; each < rank; ++each) columns += columns_of(each);
    return columns;
  }
};

// One rank's plan and buffers. The products of all ranks together form one product with a longer inner dimension.
class rank_run {
 public:
  rank_run(member& self, const shape& test_shape)
      : m_self(self),
        m_shape(test_shape),
        m_k(test_shape.columns_of(self.rank)),
        m_a(test_shape.input, test_shape.m, m_k, ISTHMUS_ROW_MAJOR, m_k + test_shape.gap),
        m_b(test_shape.input, m_k, test_shape.n, test_shape.b_layout, ldb()),
        m_c(test_shape.output, test_shape.m, test_shape.n, ISTHMUS_ROW_MAJOR, test_shape.n + c_gap()),
        m_a_data(m_a.bytes(), self.stream),
        m_b_data(m_b.bytes(), self.stream),
        m_c_data(m_c.bytes(), self.stream),
        m_bias(test_shape.bias ? test_shape.n * isthmus_datatype_bytes(test_shape.output) : 0, self.stream) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = ISTHMUS_FUSED_GEMM_ALLREDUCE;
    description.mode = test_shape.mode;
    description.m = test_shape.m, description.n = test_shape.n, description.k = m_k;
    description.input = test_shape.input, description.output = test_shape.output;
    description.b_layout = test_shape.b_layout;
    description.lda = m_k + test_shape.gap, description.ldb = ldb(), description.ldc = test_shape.n + c_gap();
    if (isthmus_fused_plan_create(self.communicator, &description, &m_plan) != ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
  }
  ~rank_run() { EXPECT_EQ(isthmus_fused_plan_destroy(m_plan), ISTHMUS_SUCCESS) << last_error_text(); }
  rank_run(const rank_run&) = delete;
  rank_run& operator=(const rank_run&) = delete;

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

  void run(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
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
    m_c_data.download();
  }

  void check() const {
    const std::uint64_t columns = m_shape.columns_before(m_self.size);
    const matrix a(m_shape.input, m_shape.m, columns, ISTHMUS_ROW_MAJOR, 0);
    const matrix b(m_shape.input, columns, m_shape.n, ISTHMUS_ROW_MAJOR, 0);
    std::vector<std::byte> a_data(a.bytes()), b_data(b.bytes());
    a.fill(m_seed, 0, a_data.data());
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

void run_case(const shape& test_shape) { run_twice<rank_run>(test_shape); }

TEST(fused_allreduce, types_and_layouts) {
  each_variant([](const variant& kind) {
    run_case({.m = 37,
              .n = 29,
              .k = 41,
              .input = kind.input,
              .output = kind.output,
              .b_layout = kind.b_layout,
              .gap = kind.gap,
              .mode = kind.mode == ISTHMUS_FUSED_PIPELINED ? ISTHMUS_FUSED_BY_MODEL : kind.mode,
              .bias = kind.gap == 0,
              .uneven = kind.gap != 0,
              .alpha = kind.gap == 0 ? 1.0 : -1.25});
  });
}

TEST(fused_allreduce, odd_shapes) {
  for (const auto& [m, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 300, 7), std::tuple(300, 1, 3),
                                std::tuple(16, 64, 96), std::tuple(5, 130, 257), std::tuple(2, 9000, 24)})
    for (const auto layout : {ISTHMUS_ROW_MAJOR, ISTHMUS_COLUMN_MAJOR})
      run_case({.m = static_cast<std::uint64_t>(m),
                .n = static_cast<std::uint64_t>(n),
                .k = static_cast<std::uint64_t>(k),
                .input = ISTHMUS_BFLOAT16,
                .output = ISTHMUS_BFLOAT16,
                .b_layout = layout,
                .bias = true});
}

TEST(fused_allreduce, nothing_to_do) {
  run_case({.m = 0, .n = 5, .k = 4});
  run_case({.m = 3, .n = 0, .k = 4});
  run_case({.m = 3, .n = 5, .k = 0, .bias = true});
  run_case({.m = 3, .n = 5, .k = 0, .uneven = true});
}

TEST(fused_allreduce, late_ranks_get_identical_bits) {
  run_with_delays<rank_run>(shape{.m = 7, .n = 80, .k = 64, .input = ISTHMUS_BFLOAT16});
  run_with_delays<rank_run>(shape{.m = 7,
                                  .n = 80,
                                  .k = 64,
                                  .input = ISTHMUS_BFLOAT16,
                                  .output = ISTHMUS_BFLOAT16,
                                  .b_layout = ISTHMUS_COLUMN_MAJOR});
}

TEST(fused_allreduce, all_ranks_get_equal_bits) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs all ranks in this process";
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(test_ranks::get().size()));
  const std::uint64_t seed = next_seed();
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.m = 9,
                        .n = 72,
                        .k = 40,
                        .input = ISTHMUS_FLOAT16,
                        .output = ISTHMUS_FLOAT16,
                        .b_layout = ISTHMUS_COLUMN_MAJOR});
    run.fill(seed);
    run.run();
    results[static_cast<std::size_t>(self.rank)] = run.c();
  });
  for (const auto& each : results) EXPECT_EQ(each, results.front());
}

// Views can run in any order, and the plan still computes correct results afterwards.
TEST(fused_allreduce, views_of_a_run) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.m = 16, .n = 9, .k = 12});
    run.fill(42);
    run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
    run.run(ISTHMUS_FUSED_COMPUTE_ONLY);
    run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
    run.check();
    run.fill(43);
    run.run();
    run.check();
  });
}

TEST(fused_allreduce, unsupported_arguments_are_rejected) {
  test_ranks::get().for_each_rank([](member& self) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = ISTHMUS_FUSED_GEMM_ALLREDUCE;
    description.m = 3, description.n = 4, description.k = 4;
    description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
    isthmus_fused_plan plan = nullptr;
    const auto expect_error = [&](isthmus_status status, const char* words) {
      EXPECT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), status);
      EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
    };
    description.flags = ISTHMUS_FUSED_SHARDED_B;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "SHARDED_B is set for GEMM_ALLREDUCE");
    description.flags = 0, description.chunks = 1;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "chunks = 1 must be 0");
    description.chunks = 0, description.mode = ISTHMUS_FUSED_PIPELINED;
    if (self.size > 1) expect_error(ISTHMUS_ERROR_UNSUPPORTED, "pipelined was requested, but");
    description.mode = ISTHMUS_FUSED_BY_MODEL;
    ASSERT_EQ(isthmus_fused_plan_create(self.communicator, &description, &plan), ISTHMUS_SUCCESS)
        << last_error_text();
    alignas(8) static thread_local std::byte memory[1024];
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = memory, arguments.b = memory + 256, arguments.c = memory + 512;
    arguments.alpha = 1, arguments.beta = 1;
    EXPECT_EQ(isthmus_fused_run(plan, &arguments), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("beta = 1 must be 0 for GEMM_ALLREDUCE"),
              std::string::npos);
    EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS);
  });
}

TEST(fused_allreduce, operations_with_products_are_checked) {
  if (platform() != ISTHMUS_PLATFORM_HOST) GTEST_SKIP() << "passes host memory";
  test_ranks::get().for_each_rank([](member& self) {
    alignas(8) static thread_local std::byte memory[1024];
    isthmus_product product{};
    product.rows = 2, product.columns = 4, product.inner = product.lda = product.ldb = 4;
    product.a = memory, product.b = memory + 256;
    product.alpha = 1;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_BFLOAT16;
    operation.op = ISTHMUS_SUM;
    operation.count = 8;
    operation.send_buf = operation.recv_buf = memory + 512;
    operation.product = &product;
    const auto expect_error = [&](isthmus_status status, const char* words) {
      EXPECT_EQ(isthmus_enqueue(self.communicator, &operation), status);
      EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error_text();
    };
    expect_error(ISTHMUS_ERROR_UNSUPPORTED, "backend has no kernels for products");
    product.rows = 17, operation.count = 68;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "with at most 16 rows");
    product.rows = 2, operation.count = 8, product.lda = 3;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "lda = 3");
    product.lda = 4, operation.datatype = ISTHMUS_FLOAT32;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "float16 or bfloat16");
    operation.datatype = ISTHMUS_BFLOAT16, product.b = nullptr;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "a or b is NULL");
    product.b = memory + 256, operation.send_buf = memory;
    expect_error(ISTHMUS_ERROR_INVALID_ARGUMENT, "must be recv_buf");
    operation.send_buf = operation.recv_buf;
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    expect_error(ISTHMUS_ERROR_INVALID_USAGE, "is inside a group");
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
  });
}

}  // namespace
}  // namespace fused_test
