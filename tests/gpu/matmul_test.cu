// Allreduces of products (isthmus_product) on real devices: results against float64, equal bits on all ranks, graphs, late
// ranks, timeouts and aborts.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <chrono>
#include <deque>
#include <stdexcept>
#include <thread>
#include <vector>

#include "operators/fused/matrices.hpp"
#include "test_ranks.hpp"

namespace {

using fused_test::matrix;
using gpu::member;
using gpu::test_ranks;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
cudaStream_t stream_of(const gpu::stream& queue) { return static_cast<cudaStream_t>(queue.native()); }

struct shape {
  std::uint64_t rows, columns, inner;  // rank r has `inner` + r * inner_step
  isthmus_datatype datatype = ISTHMUS_BFLOAT16;
  std::uint64_t inner_step = 0;
  std::uint64_t gap = 0;  // added to the leading dimensions
  std::size_t skew = 0;   // bytes before the first element
  bool has_bias = false;
  std::uint64_t seed = 1;

  std::uint64_t inner_of(int rank) const { return inner + static_cast<std::uint64_t>(rank) * inner_step; }
  std::uint64_t inner_before(int rank) const {
    std::uint64_t sum = 0;
    for (int each = 0; each < rank; ++each) sum += inner_of(each);
    return sum;
  }
};

// The buffers of one rank. B by columns is a row-major matrix with the columns of B as rows.
class device_call {
 public:
  device_call(const shape& test, int rank, int size, const gpu::stream& queue)
      : m_test(test),
        m_rank(rank),
        m_size(size),
        m_queue(queue),
        m_a(test.datatype, test.rows, test.inner_of(rank), ISTHMUS_ROW_MAJOR, test.inner_of(rank) + test.gap),
        m_b(test.datatype, test.inner_of(rank), test.columns, ISTHMUS_COLUMN_MAJOR,
            test.inner_of(rank) + test.gap),
        m_bias(test.datatype, 1, test.columns, ISTHMUS_ROW_MAJOR, test.columns),
        m_c(test.datatype, test.rows, test.columns, ISTHMUS_ROW_MAJOR, test.columns),
        m_a_data(m_a.bytes() + test.skew),
        m_b_data(m_b.bytes() + test.skew),
        m_bias_data(m_bias.bytes() + test.skew),
        m_c_data(m_c.bytes() + test.skew) {
    refill(test.seed);
  }

  // Writes other inputs, and poisons the result.
  void refill(std::uint64_t seed) {
    m_test.seed = seed;
    std::vector<std::byte> host(m_a.bytes());
    m_a.fill(seed, 0, host.data(), m_test.inner_before(m_rank));
    m_a_data.write(host, m_queue, m_test.skew);
    host.resize(m_b.bytes());
    m_b.fill(seed + 1, m_test.inner_before(m_rank), host.data());
    m_b_data.write(host, m_queue, m_test.skew);
    m_bias_data.write(bias(), m_queue, m_test.skew);
    host.resize(m_c.bytes());
    m_c.poison(host.data());
    m_c_data.write(host, m_queue, m_test.skew);
  }

  isthmus_status start(isthmus_communicator communicator) const {
    isthmus_product product{};
    product.rows = m_test.rows, product.columns = m_test.columns;
    product.inner = m_test.inner_of(m_rank);
    product.lda = product.ldb = product.inner + m_test.gap;
    product.a = m_a_data.data() + m_test.skew;
    product.b = m_b_data.data() + m_test.skew;
    if (m_test.has_bias && m_rank == 0) product.bias = m_bias_data.data() + m_test.skew;
    product.alpha = 1;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = m_test.datatype;
    operation.op = ISTHMUS_SUM;
    operation.count = m_test.rows * m_test.columns;
    operation.send_buf = operation.recv_buf = m_c_data.data() + m_test.skew;
    operation.stream = m_queue.native();
    operation.product = &product;
    return isthmus_enqueue(communicator, &operation);
  }

  // Waits for the stream.
  std::vector<std::byte> result() const {
    std::vector<std::byte> all = m_c_data.read(m_queue);
    return {all.begin() + static_cast<std::ptrdiff_t>(m_test.skew), all.end()};
  }
  std::string error() const {
    const std::uint64_t inner = m_test.inner_before(m_size);
    const matrix a(m_test.datatype, m_test.rows, inner, ISTHMUS_ROW_MAJOR, 0);
    const matrix b(m_test.datatype, inner, m_test.columns, ISTHMUS_ROW_MAJOR, 0);
    std::vector<std::byte> a_data(a.bytes()), b_data(b.bytes());
    a.fill(m_test.seed, 0, a_data.data());
    b.fill(m_test.seed + 1, 0, b_data.data());
    const std::vector<std::byte> bias_data = bias();
    const fused_test::product all{a,
                                  b,
                                  m_c,
                                  a_data.data(),
                                  b_data.data(),
                                  nullptr,
                                  m_test.has_bias ? bias_data.data() : nullptr,
                                  1,
                                  0,
                                  m_test.datatype,
                                  2 * m_size};
    return product_error(all, result().data(), 0);
  }
  bool is_untouched() const {
    std::vector<std::byte> poison(m_c.bytes());
    m_c.poison(poison.data());
    return result() == poison;
  }

 private:
  std::vector<std::byte> bias() const {
    std::vector<std::byte> host(m_bias.bytes());
    m_bias.fill(m_test.seed + 2, 0, host.data());
    return host;
  }

  shape m_test;
  int m_rank, m_size;
  const gpu::stream& m_queue;
  matrix m_a, m_b, m_bias, m_c;
  gpu::buffer m_a_data, m_b_data, m_bias_data, m_c_data;
};

void expect_correct(const shape& test) {
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(test_ranks::get().size()));
  test_ranks::get().for_each_rank([&](member& self) {
    const device_call call(test, self.rank, self.size, *self.queue);
    ASSERT_EQ(call.start(self.communicator), ISTHMUS_SUCCESS) << gpu::last_error();
    EXPECT_EQ(call.error(), "") << "rank " << self.rank << ", " << test.rows << " x " << test.columns << " x "
                                << test.inner;
    results[static_cast<std::size_t>(self.rank)] = call.result();
  });
  if (!test_ranks::get().is_single_process()) return;
  for (const auto& each : results) EXPECT_EQ(each, results.front()) << "the ranks have different bits";
}

TEST(shapes, are_correct) {
  for (const isthmus_datatype datatype : {ISTHMUS_BFLOAT16, ISTHMUS_FLOAT16})
    for (const std::uint64_t rows : {1, 2, 7, 8, 9, 16})
      for (const auto& [columns, inner] : {std::pair(64, 256), {1024, 512}, {8, 8}, {200, 2056}, {9000, 64}})
        expect_correct(
            {rows, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(inner), datatype});
}

TEST(shapes, layouts_and_bias_are_correct) {
  for (const std::uint64_t inner : {1, 7, 13, 40, 300})
    for (const auto& [gap, skew] : {std::pair(0, 0), {8, 0}, {3, 0}, {0, 2}, {8, 16}})
      expect_correct({5, 130, inner, ISTHMUS_BFLOAT16, 8, static_cast<std::uint64_t>(gap),
                      static_cast<std::size_t>(skew), true});
}

// A different rank is late in each call, and the kernels of allreduce use the same inboxes.
TEST(calls, back_to_back_with_skewed_ranks) {
  const std::vector<shape> shapes{{1, 4096, 256}, {16, 1024, 64}, {3, 12000, 32}, {8, 64, 1024}};
  test_ranks::get().for_each_rank([&](member& self) {
    std::deque<device_call> calls;
    for (const shape& each : shapes) calls.emplace_back(each, self.rank, self.size, *self.queue);
    gpu::buffer floats(4 << 20);
    check(cudaMemset(floats.data(), 0, floats.bytes()));
    for (int i = 0; i < 200; ++i) {
      if (i % self.size == self.rank && i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ASSERT_EQ(calls[static_cast<std::size_t>(i) * 7 % calls.size()].start(self.communicator), ISTHMUS_SUCCESS)
          << gpu::last_error();
      if (i % 5 == 0) {
        ASSERT_EQ(isthmus_allreduce(floats.data(), floats.data(), i % 2 == 0 ? 100 : 1 << 20, ISTHMUS_FLOAT32,
                                    ISTHMUS_SUM, self.communicator, self.queue->native()),
                  ISTHMUS_SUCCESS)
            << gpu::last_error();
      }
    }
    for (const device_call& each : calls) EXPECT_EQ(each.error(), "") << "rank " << self.rank;
  });
}

TEST(graphs, many_replays_are_correct) {
  const std::vector<shape> shapes{{1, 4096, 256}, {16, 1024, 64}, {3, 12000, 32}};
  test_ranks::get().for_each_rank([&](member& self) {
    std::deque<device_call> calls;
    for (const shape& each : shapes) calls.emplace_back(each, self.rank, self.size, *self.queue);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_of(*self.queue), cudaStreamCaptureModeThreadLocal));
    isthmus_status status = ISTHMUS_SUCCESS;
    for (const device_call& call : calls)
      if (status == ISTHMUS_SUCCESS) status = call.start(self.communicator);
    check(cudaStreamEndCapture(stream_of(*self.queue), &graph));
    ASSERT_EQ(status, ISTHMUS_SUCCESS) << gpu::last_error();
    check(cudaGraphInstantiate(&executable, graph, 0));
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (device_call& each : calls) each.refill(10 * round + 1);
      for (int replay = 0; replay < 100; ++replay) {
        if (replay % self.size == self.rank && replay % 4 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        check(cudaGraphLaunch(executable, stream_of(*self.queue)));
      }
      for (const device_call& each : calls) EXPECT_EQ(each.error(), "") << "rank " << self.rank;
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
  });
}

// Two ranks of this process with their own communicators.
struct own_pair {
  isthmus_communicator ranks[2] = {};

  explicit own_pair(double timeout_s) {
    const isthmus_device devices[2] = {{ISTHMUS_PLATFORM_CUDA, 0}, {ISTHMUS_PLATFORM_CUDA, 1}};
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.timeout_s = timeout_s;
    if (isthmus_communicator_create_all(2, devices, &options, ranks) != ISTHMUS_SUCCESS)
      throw std::runtime_error(gpu::last_error());
  }
  ~own_pair() {
    for (isthmus_communicator each : ranks) isthmus_communicator_destroy(each);
  }
};
bool has_own_pair() { return test_ranks::get().is_single_process() && test_ranks::get().size() >= 2; }

TEST(failures, abort_releases_the_stream_and_stores_nothing) {
  if (!has_own_pair()) GTEST_SKIP() << "needs two ranks here";
  own_pair pair(30);
  gpu::use_device(0);
  gpu::stream queue(0);
  const device_call call({4, 12000, 256}, 0, 2, queue);
  ASSERT_EQ(call.start(pair.ranks[0]), ISTHMUS_SUCCESS) << gpu::last_error();
  EXPECT_EQ(cudaStreamQuery(stream_of(queue)), cudaErrorNotReady);
  EXPECT_EQ(isthmus_communicator_abort(pair.ranks[0]), ISTHMUS_SUCCESS);
  EXPECT_TRUE(call.is_untouched());
  EXPECT_EQ(call.start(pair.ranks[0]), ISTHMUS_ERROR_ABORTED);
}

TEST(failures, timeout_is_reported_and_stores_nothing) {
  if (!has_own_pair()) GTEST_SKIP() << "needs two ranks here";
  own_pair pair(1);
  gpu::use_device(0);
  gpu::stream queue(0);
  const device_call call({16, 4096, 256}, 0, 2, queue);
  ASSERT_EQ(call.start(pair.ranks[0]), ISTHMUS_SUCCESS) << gpu::last_error();
  EXPECT_TRUE(call.is_untouched());
  EXPECT_EQ(isthmus_communicator_async_error(pair.ranks[0]), ISTHMUS_ERROR_TIMEOUT) << gpu::last_error();
}

TEST(failures, invalid_products_are_rejected) {
  test_ranks::get().for_each_rank([](member& self) {
    const device_call rows({17, 64, 64}, self.rank, self.size, *self.queue);
    EXPECT_EQ(rows.start(self.communicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(gpu::last_error().find("at most 16 rows"), std::string::npos) << gpu::last_error();
    const device_call floats({4, 64, 64, ISTHMUS_FLOAT32}, self.rank, self.size, *self.queue);
    EXPECT_EQ(floats.start(self.communicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
  });
}

}  // namespace
