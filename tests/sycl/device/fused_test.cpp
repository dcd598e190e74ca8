// Every form of fused.hpp, with products by kernels and by the vendor's library, and allreduce_rmsnorm. Two calls are in
// flight on one queue, buffers start at an odd element of their block, and outputs are poisoned. All results are
// compared with float64 or wider.
#include <cmath>
#include <cstring>
#include <functional>

#include "blas_product.hpp"
#include "kernels.hpp"
#include "operators/allreduce_rmsnorm/norm_case.hpp"
#include "reference_product.hpp"

namespace sycl_device_test {
namespace {

constexpr std::size_t guard = 3;   // elements before and after each buffer
constexpr std::byte poison{0xfb};  // NaN in every floating-point type of these tests, except float8

// Device memory with `guard` elements on both sides, which must not change.
template <typename T>
class guarded {
 public:
  guarded(std::size_t count, const sycl::queue& queue, std::size_t guard_elements = guard)
      : m_queue(queue),
        m_guard(guard_elements),
        m_poison((count + 2 * guard_elements) * sizeof(T), poison),
        m_block(count + 2 * guard_elements, queue) {
    clear();
  }
  guarded(const std::vector<T>& values, const sycl::queue& queue, std::size_t guard_elements = guard)
      : guarded(values.size(), queue, guard_elements) {
    write(values);
  }
  T* data() const { return m_block.data() + m_guard; }
  std::size_t size() const { return m_poison.size() / sizeof(T) - 2 * m_guard; }
  void clear() { m_queue.memcpy(m_block.data(), m_poison.data(), m_poison.size()).wait(); }
  void write(const std::vector<T>& values) {
    m_queue.memcpy(data(), values.data(), values.size() * sizeof(T)).wait();
  }
  std::vector<T> read() {
    std::vector<T> all(m_poison.size() / sizeof(T));
    m_queue.memcpy(all.data(), m_block.data(), m_poison.size()).wait();
    const auto* const bytes = reinterpret_cast<const std::byte*>(all.data());
    EXPECT_TRUE(std::equal(bytes, bytes + m_guard * sizeof(T), m_poison.data())) << "written before the buffer";
    EXPECT_TRUE(std::equal(bytes + (m_guard + size()) * sizeof(T), bytes + m_poison.size(), m_poison.data()))
        << "written after the buffer";
    return {all.begin() + static_cast<std::ptrdiff_t>(m_guard),
            all.end() - static_cast<std::ptrdiff_t>(m_guard)};
  }

 private:
  sycl::queue m_queue;
  std::size_t m_guard;
  std::vector<std::byte> m_poison;
  block<T> m_block;
};

// ---- products -----------------------------------------------------------------------------------------------

constexpr product_shape shapes[] = {{37, 19, 11, 3}, {5, 7, 3, 16}, {64, 33, 5, 1}, {200, 257, 95, 4}};

// c[rows x columns] = a[rows x inner] * b[inner x columns] on the queue, which is out of order.
using product = std::function<sycl::event(sycl::queue&, const float* a, std::uint64_t rows, const float* b,
                                          float* c, const isthmus::dependencies&)>;

product make_kernel_product(const test_rank& self, const product_shape& shape) {
  return [&self, shape](sycl::queue& queue, const float* a, std::uint64_t rows, const float* b, float* c,
                        const isthmus::dependencies& wait_events) {
    return kernels_of(self).run(
        queue, {rows, shape.columns, 1, 64}, device_code::multiply{shape.inner, shape.columns}, wait_events,
        view(a, rows * shape.inner), view(b, shape.inner * shape.columns), view(c, rows * shape.columns));
  };
}
product make_library_product(const test_rank& self, const product_shape& shape) {
  return [library = std::make_shared<blas_product>(self.ranks.platform(), shape.inner, shape.columns)](
             sycl::queue& queue, const float* a, std::uint64_t rows, const float* b, float* c,
             const isthmus::dependencies& wait_events) {
    return library->enqueue(queue, a, rows, b, c, wait_events);
  };
}

// Checks every element within `roundings` float32 roundings of its terms. A poisoned element fails.
void expect_product(const reference_product& expected, const std::vector<float>& result,
                    std::uint64_t roundings) {
  ASSERT_EQ(result.size(), expected.sums.size());
  for (std::size_t i = 0; i < result.size(); ++i)
    ASSERT_LE(std::abs(static_cast<double>(result[i]) - expected.sums[i]),
              static_cast<double>(roundings) * 0x1p-24 * expected.sizes[i])
        << "element " << i << " is " << result[i] << " instead of " << expected.sums[i];
}

// Runs `start` of two calls before it waits for either, twice. Equal inputs must give equal bits.
template <typename Call>
void run_two_in_flight(Call& first, Call& second) {
  std::vector<std::vector<float>> results;
  for (int repetition = 0; repetition < 2; ++repetition) {
    first.clear_outputs(), second.clear_outputs();
    std::vector<sycl::event> events = first.start();
    for (const sycl::event& event : second.start()) events.push_back(event);
    for (sycl::event& event : events) event.wait();
    for (Call* call : {&first, &second}) {
      results.push_back(call->result());
      call->expect_correct(results.back());
    }
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
}

// C = allgather(A) * B; every rank has its own B.
class gather_call {
 public:
  gather_call(test_rank& self, const product_shape& shape, const product& multiply, std::uint64_t seed,
              bool in_place)
      : m_self(self),
        m_shape(shape),
        m_multiply(multiply),
        m_products(unordered_queue(self)),
        m_in_place(in_place),
        m_all_a(random_matrix(all_rows() * shape.inner, seed)),
        m_own_b(random_matrix(shape.inner * shape.columns, seed + 1 + static_cast<std::uint64_t>(self.rank))),
        m_source({m_all_a.begin() + own_begin(), m_all_a.begin() + own_begin() + own_elements()}, m_products),
        m_own(m_source.size(), m_products),
        m_gathered(m_all_a.size(), m_products),
        m_b(m_own_b, m_products),
        m_c(all_rows() * shape.columns, m_products),
        m_shards(self.ranks, self.queue, shape.rows, shape.inner, shape.chunks) {}

  void clear_outputs() { m_own.clear(), m_gathered.clear(), m_c.clear(); }
  std::vector<sycl::event> start() {
    float* const own = m_in_place ? m_gathered.data() + own_begin() : m_own.data();
    const sycl::event produce_event = m_products.memcpy(own, m_source.data(), m_source.size() * sizeof(float));
    const auto multiply = [this](const float* from, std::uint64_t first, std::uint64_t rows,
                                 const isthmus::dependencies& wait_events) {
      return m_multiply(m_products, from, rows, m_b.data(), m_c.data() + first * m_shape.columns, wait_events);
    };
    return isthmus::allgather_gemm(m_self.ranks, m_self.queue, own, m_gathered.data(), m_shards, multiply,
                                   {produce_event});
  }
  std::vector<float> result() { return m_c.read(); }
  void expect_correct(const std::vector<float>& result) {
    EXPECT_EQ(m_gathered.read(), m_all_a) << "the gathered A";
    reference_product expected(result.size());
    expected.add(m_shape, m_all_a, 0, all_rows(), m_own_b);
    expect_product(expected, result, m_shape.inner + 8);
  }

 private:
  std::uint64_t all_rows() const { return static_cast<std::uint64_t>(m_self.ranks.size()) * m_shape.rows; }
  std::ptrdiff_t own_elements() const { return static_cast<std::ptrdiff_t>(m_shape.rows * m_shape.inner); }
  std::ptrdiff_t own_begin() const { return m_self.rank * own_elements(); }

  test_rank& m_self;
  product_shape m_shape;
  product m_multiply;
  sycl::queue m_products;
  bool m_in_place;
  std::vector<float> m_all_a, m_own_b;
  guarded<float> m_source, m_own, m_gathered, m_b, m_c;
  isthmus::row_shards m_shards;
};

// C = own rows of the sum over ranks of A * B; every rank has its own A and B.
class scatter_call {
 public:
  scatter_call(test_rank& self, const product_shape& shape, const product& multiply, std::uint64_t seed, bool)
      : m_self(self),
        m_shape(shape),
        m_multiply(multiply),
        m_products(unordered_queue(self)),
        m_seed(seed),
        m_source(matrix_a(self.rank), m_products),
        m_a(m_source.size(), m_products),
        m_b(matrix_b(self.rank), m_products),
        m_partial(size() * shape.rows * shape.columns, m_products),
        m_c(shape.rows * shape.columns, m_products),
        m_shards(self.ranks, self.queue, shape.rows, shape.columns, shape.chunks) {}

  void clear_outputs() { m_a.clear(), m_partial.clear(), m_c.clear(); }
  std::vector<sycl::event> start() {
    const sycl::event produce_event =
        m_products.memcpy(m_a.data(), m_source.data(), m_source.size() * sizeof(float));
    const auto multiply = [this](std::uint64_t first, std::uint64_t rows, float* to,
                                 const isthmus::dependencies& wait_events) {
      return m_multiply(m_products, m_a.data() + first * m_shape.inner, rows, m_b.data(), to, wait_events);
    };
    return isthmus::gemm_reduce_scatter(m_self.ranks, m_self.queue, m_partial.data(), m_c.data(), m_shards,
                                        multiply, {produce_event});
  }
  std::vector<float> result() { return m_c.read(); }
  void expect_correct(const std::vector<float>& result) {
    m_partial.read();  // checks what is around it
    reference_product expected(result.size());
    for (int rank = 0; rank < m_self.ranks.size(); ++rank)
      expected.add(m_shape, matrix_a(rank), static_cast<std::uint64_t>(m_self.rank) * m_shape.rows,
                   m_shape.rows, matrix_b(rank));
    expect_product(expected, result, m_shape.inner + size() + 8);
  }

 private:
  std::uint64_t size() const { return static_cast<std::uint64_t>(m_self.ranks.size()); }
  std::vector<float> matrix_a(int rank) const {
    return random_matrix(size() * m_shape.rows * m_shape.inner, m_seed + 2 * static_cast<std::uint64_t>(rank));
  }
  std::vector<float> matrix_b(int rank) const {
    return random_matrix(m_shape.inner * m_shape.columns, m_seed + 2 * static_cast<std::uint64_t>(rank) + 1);
  }

  test_rank& m_self;
  product_shape m_shape;
  product m_multiply;
  sycl::queue m_products;
  std::uint64_t m_seed;
  guarded<float> m_source, m_a, m_b, m_partial, m_c;
  isthmus::row_shards m_shards;
};

template <typename Call>
void run_every_shape(product (*make_product)(const test_rank&, const product_shape&)) {
  for (const product_shape& shape : shapes)
    rank_team::get().for_each_rank([&](test_rank& self) {
      SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.inner << " x " << shape.columns);
      const product multiply = make_product(self, shape);
      Call first(self, shape, multiply, 1000, false), second(self, shape, multiply, 2000, true);
      run_two_in_flight(first, second);
    });
}

TEST(fused, allgather_gemm_with_kernels) { run_every_shape<gather_call>(make_kernel_product); }
TEST(fused, gemm_reduce_scatter_with_kernels) { run_every_shape<scatter_call>(make_kernel_product); }
TEST(fused, allgather_gemm_with_vendor_library) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "the host has no vendor library";
  run_every_shape<gather_call>(make_library_product);
}
TEST(fused, gemm_reduce_scatter_with_vendor_library) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "the host has no vendor library";
  run_every_shape<scatter_call>(make_library_product);
}

// ---- allreduce, residual addition and RMSNorm ---------------------------------------------------------------

// One call with its buffers, which start `guard` elements after the start of their blocks.
class norm_call {
 public:
  norm_call(test_rank& self, const rmsnorm_test::norm_shape& shape)
      : m_self(self),
        m_test(shape),
        m_outputs(m_test.poisoned_outputs()),
        m_input(own(m_test.contribution(self.rank), shape.datatype)),
        m_residual(own(m_test.residual(), shape.datatype)),
        m_weight(own(m_test.weight(), shape.datatype)),
        m_residual_out(own(m_outputs.residual, shape.datatype)),
        m_normalized(own(m_outputs.normalized, shape.output)),
        m_scale(std::vector{m_test.scale()}, self.queue),
        m_scales(m_outputs.scales, self.queue) {}

  sycl::event start(const sycl::queue& queue) {
    isthmus_allreduce_rmsnorm_arguments arguments = m_test.arguments(m_self.rank, m_outputs);
    arguments.input = m_input.data(), arguments.residual = m_residual.data(),
    arguments.weight = m_weight.data();
    arguments.residual_out = m_residual_out.data(), arguments.normalized = m_normalized.data();
    if (arguments.scale != nullptr) arguments.scale = m_scale.data();
    if (arguments.scales != nullptr) arguments.scales = m_scales.data();
    return m_self.ranks.allreduce_rmsnorm(queue, arguments);
  }
  // Compares the outputs with a reference in wide arithmetic, and their bits with those of the host.
  void expect_correct() {
    m_outputs = {m_residual_out.read(), m_normalized.read(), m_scales.read()};
    EXPECT_EQ(m_test.find_error(m_outputs), "");
    EXPECT_TRUE(m_outputs == rmsnorm_test::run_on_host(m_test).front()) << to_string(m_test.shape());
  }

 private:
  guarded<std::byte> own(const rmsnorm_test::bytes& values, isthmus_datatype datatype) {
    return {values, m_self.queue, guard * isthmus::detail::datatype_bytes[datatype]};
  }

  test_rank& m_self;
  rmsnorm_test::norm_case m_test;
  rmsnorm_test::norm_outputs m_outputs;
  guarded<std::byte> m_input, m_residual, m_weight, m_residual_out, m_normalized;
  guarded<float> m_scale, m_scales;
};

TEST(fused, allreduce_rmsnorm_has_the_bits_of_the_host) {
  const int size = rank_team::get().size();
  if (size == 1) GTEST_SKIP() << "a single device has no kernels for it";
  std::uint64_t seed = 1;
  for (const auto& [tokens, hidden] : {std::pair<std::uint64_t, std::uint64_t>{5, 64}, {3, 1001}, {12, 4096}})
    for (const bool in_order : {true, false})
      for (rmsnorm_test::norm_shape shape : rmsnorm_test::kinds_of({size, tokens, hidden})) {
        shape.seed = ++seed;
        rank_team::get().for_each_rank([&](test_rank& self) {
          const sycl::queue queue = in_order ? self.queue : unordered_queue(self);
          rmsnorm_test::norm_shape other = shape;
          other.seed += 1000;
          norm_call first(self, shape), second(self, other);
          sycl::event first_event = first.start(queue), second_event = second.start(queue);
          first_event.wait(), second_event.wait();
          first.expect_correct(), second.expect_correct();
        });
      }
}

TEST(fused, invalid_allreduce_rmsnorm_starts_nothing) {
  rank_team::get().for_each_rank([](test_rank& self) {
    isthmus_allreduce_rmsnorm_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.datatype = arguments.output = ISTHMUS_FLOAT32;
    const auto refused = sycl_test::thrown_by([&] { self.ranks.allreduce_rmsnorm(self.queue, arguments); });
    EXPECT_EQ(refused.code(), ISTHMUS_ERROR_INVALID_ARGUMENT) << refused.what();
    EXPECT_NE(refused.message().find("hidden = 0"), std::string::npos) << refused.what();
    isthmus::group group;
    const auto in_group = sycl_test::thrown_by([&] { self.ranks.allreduce_rmsnorm(self.queue, arguments); });
    EXPECT_EQ(in_group.code(), ISTHMUS_ERROR_INVALID_USAGE) << in_group.what();
    group.end();
    const block<int> data(10, self.queue);
    self.queue.fill(data.data(), 4, 10);
    self.ranks.allreduce(self.queue, data.data(), 10).wait();  // the communicator stays usable
  });
}

}  // namespace
}  // namespace sycl_device_test
