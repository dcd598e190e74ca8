// isthmus_allreduce_rmsnorm on real devices: results, which must have the bits of the host version, graphs, late ranks,
// timeouts and aborts.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>

#include "operators/allreduce_rmsnorm/norm_case.hpp"
#include "test_ranks.hpp"

namespace {

using gpu::member;
using gpu::test_ranks;
using rmsnorm_test::norm_case;
using rmsnorm_test::norm_outputs;
using rmsnorm_test::norm_shape;
using arguments = isthmus_allreduce_rmsnorm_arguments;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
cudaStream_t stream_of(const gpu::stream& queue) { return static_cast<cudaStream_t>(queue.native()); }

template <typename Value>
std::span<const std::byte> as_bytes(const std::vector<Value>& values) {
  return std::as_bytes(std::span(values));
}

// The buffers of one rank. They start `skew` bytes after a multiple of 256.
class device_call {
 public:
  device_call(const norm_case& test, int rank, const gpu::stream& queue, std::size_t skew = 0)
      : m_test(test),
        m_rank(rank),
        m_queue(queue),
        m_skew(skew),
        m_input(test.residual().size() + skew),
        m_residual(test.residual().size() + skew),
        m_weight(test.weight().size() + skew),
        m_residual_out(test.residual().size() + skew),
        m_normalized(test.poisoned_outputs().normalized.size() + skew),
        m_scales(std::max<std::size_t>(4, 4 * test.shape().tokens)) {
    m_weight.write(test.weight(), queue, skew);
    refill(test);
  }

  // Writes the inputs of a case with the same shape and weight, and poisons the outputs.
  void refill(const norm_case& test) {
    m_input.write(test.contribution(m_rank), m_queue, m_skew);
    m_residual.write(test.residual(), m_queue, m_skew);
    const norm_outputs poison = test.poisoned_outputs();
    m_residual_out.write(poison.residual, m_queue, m_skew);
    m_normalized.write(poison.normalized, m_queue, m_skew);
    if (test.shape().has_row_scales)
      m_scales.write(as_bytes(poison.scales), m_queue);
    else
      m_scales.write(std::as_bytes(std::span(&test.scale(), 1)), m_queue);
  }
  isthmus_status start(isthmus_communicator communicator, bool in_place = false) const {
    norm_outputs unused;
    arguments call = m_test.arguments(m_rank, unused);
    call.input = m_input.data() + m_skew;
    call.residual = m_residual.data() + m_skew;
    call.weight = m_weight.data() + m_skew;
    call.residual_out = (in_place ? m_residual : m_residual_out).data() + m_skew;
    call.normalized = (in_place ? m_input : m_normalized).data() + m_skew;
    const bool is_quantized = m_test.shape().output != m_test.shape().datatype;
    call.scale =
        is_quantized && !m_test.shape().has_row_scales ? reinterpret_cast<float*>(m_scales.data()) : nullptr;
    call.scales = m_test.shape().has_row_scales ? reinterpret_cast<float*>(m_scales.data()) : nullptr;
    call.stream = m_queue.native();
    return isthmus_allreduce_rmsnorm(communicator, &call);
  }
  // Waits for the stream.
  norm_outputs outputs(bool in_place = false) const {
    const auto read = [&](const gpu::buffer& from) {
      rmsnorm_test::bytes all = from.read(m_queue);
      all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(m_skew));
      return all;
    };
    norm_outputs result{
        read(in_place ? m_residual : m_residual_out), read(in_place ? m_input : m_normalized), {}};
    if (m_test.shape().has_row_scales) {
      result.scales.resize(m_test.shape().tokens);
      std::memcpy(result.scales.data(), m_scales.read(m_queue).data(), 4 * result.scales.size());
    }
    return result;
  }

 private:
  const norm_case& m_test;
  int m_rank;
  const gpu::stream& m_queue;
  std::size_t m_skew;
  gpu::buffer m_input, m_residual, m_weight, m_residual_out, m_normalized, m_scales;
};

// A case and the correct outputs of some of its rows.
struct reference {
  norm_case test;
  std::vector<std::uint64_t> rows;
  norm_outputs expected;

  explicit reference(const norm_shape& shape, std::uint64_t most_rows = 12)
      : test(shape), rows(rmsnorm_test::sample_rows(shape.tokens, most_rows)) {
    const norm_case sample = test.select(rows);
    expected = rmsnorm_test::run_on_host(sample).front();
    EXPECT_EQ(sample.find_error(expected), "");
  }
  // "" or why the outputs of a rank are wrong.
  std::string error_of(const norm_outputs& outputs) const {
    const norm_outputs actual = test.select(outputs, rows);
    const std::string error = test.select(rows).find_error(actual);
    if (!error.empty()) return error;
    return actual == expected ? "" : "the bits differ from the host version | " + to_string(test.shape());
  }
};

norm_shape shape_of(std::uint64_t tokens, std::uint64_t hidden, isthmus_datatype datatype = ISTHMUS_BFLOAT16) {
  return {test_ranks::get().size(), tokens, hidden, datatype, datatype, false, tokens * 31 + hidden};
}

void expect_correct(const norm_shape& shape, std::size_t skew = 0, bool in_place = false) {
  const reference correct(shape);
  if (testing::Test::HasFailure()) return;
  test_ranks::get().for_each_rank([&](member& self) {
    const device_call call(correct.test, self.rank, *self.queue, skew);
    ASSERT_EQ(call.start(self.communicator, in_place), ISTHMUS_SUCCESS) << gpu::last_error();
    EXPECT_EQ(correct.error_of(call.outputs(in_place)), "") << "rank " << self.rank << ", skew " << skew;
  });
}

class every_size : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(every_size, and_kind_is_correct) {
  const std::uint64_t tokens = GetParam();
  for (const std::uint64_t hidden : {64, 100, 6144, 6147, 8192, 16384}) {
    const bool is_large = tokens * hidden > (1 << 21);
    for (const norm_shape& shape : rmsnorm_test::kinds_of(shape_of(tokens, hidden))) {
      if (is_large && shape.datatype != ISTHMUS_BFLOAT16) continue;
      expect_correct(shape);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(tokens, every_size, ::testing::Values(1, 6, 32, 138, 2048));

TEST(buffers, can_have_the_alignment_of_an_element) {
  for (const norm_shape& shape : rmsnorm_test::kinds_of(shape_of(5, 6144)))
    for (const std::size_t skew : {4, 8}) expect_correct(shape, skew);
  expect_correct(shape_of(3, 1000), 2);
}

TEST(buffers, can_be_in_place) {
  for (const std::uint64_t tokens : {1, 6, 300}) expect_correct(shape_of(tokens, 6144), 0, true);
}

TEST(calls, without_tokens_do_nothing) {
  test_ranks::get().for_each_rank([](member& self) {
    arguments call{};
    call.struct_bytes = sizeof call;
    call.hidden = 6144;
    call.datatype = call.output = ISTHMUS_BFLOAT16;
    call.stream = self.queue->native();
    EXPECT_EQ(isthmus_allreduce_rmsnorm(self.communicator, &call), ISTHMUS_SUCCESS) << gpu::last_error();
  });
}

// A different rank is late in each call, and the kernels of allreduce use the same inboxes.
TEST(calls, back_to_back_with_skewed_ranks) {
  std::deque<reference> all;
  for (const auto& [tokens, hidden] :
       {std::pair(1, 6144), {138, 6144}, {700, 1024}, {6, 16384}, {2048, 6144}, {33, 70}})
    all.emplace_back(shape_of(tokens, hidden), 4);
  const int size = test_ranks::get().size();
  test_ranks::get().for_each_rank([&](member& self) {
    std::deque<device_call> calls;
    for (const reference& each : all) calls.emplace_back(each.test, self.rank, *self.queue);
    gpu::buffer floats(4 << 20);
    check(cudaMemset(floats.data(), 0, floats.bytes()));
    for (int i = 0; i < 200; ++i) {
      if (i % size == self.rank && i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ASSERT_EQ(calls[static_cast<std::size_t>(i * 7) % calls.size()].start(self.communicator), ISTHMUS_SUCCESS)
          << gpu::last_error();
      if (i % 5 == 0) {
        ASSERT_EQ(isthmus_allreduce(floats.data(), floats.data(), i % 2 == 0 ? 100 : 1 << 20, ISTHMUS_FLOAT32,
                                    ISTHMUS_SUM, self.communicator, self.queue->native()),
                  ISTHMUS_SUCCESS)
            << gpu::last_error();
      }
    }
    for (std::size_t i = 0; i < calls.size(); ++i)
      EXPECT_EQ(all[i].error_of(calls[i].outputs()), "") << "rank " << self.rank;
  });
}

TEST(graphs, many_replays_are_correct) {
  const std::vector<norm_shape> shapes{shape_of(6, 6144), shape_of(138, 6144), shape_of(64, 8192),
                                       shape_of(1024, 6144), shape_of(32, 16384)};
  constexpr int rounds = 3, replays = 100;
  std::deque<std::deque<reference>> all;  // [round][shape]
  for (std::uint64_t round = 0; round < rounds; ++round)
    for (all.emplace_back(); norm_shape shape : shapes) {
      shape.seed += round;
      all.back().emplace_back(shape, 4);
    }
  const int size = test_ranks::get().size();
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto& round : all) {
      std::deque<device_call> calls;
      for (const reference& each : round) calls.emplace_back(each.test, self.rank, *self.queue);
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      check(cudaStreamBeginCapture(stream_of(*self.queue), cudaStreamCaptureModeThreadLocal));
      isthmus_status status = ISTHMUS_SUCCESS;
      for (const device_call& call : calls)
        if (status == ISTHMUS_SUCCESS) status = call.start(self.communicator);
      check(cudaStreamEndCapture(stream_of(*self.queue), &graph));
      ASSERT_EQ(status, ISTHMUS_SUCCESS) << gpu::last_error();
      check(cudaGraphInstantiate(&executable, graph, 0));
      for (int replay = 0; replay < replays; ++replay) {
        if (replay % size == self.rank && replay % 4 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        check(cudaGraphLaunch(executable, stream_of(*self.queue)));
      }
      self.queue->synchronize();
      for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(round[i].error_of(calls[i].outputs()), "") << "rank " << self.rank;
        calls[i].refill(round[i].test);
      }
      check(cudaGraphLaunch(executable, stream_of(*self.queue)));
      for (std::size_t i = 0; i < calls.size(); ++i)
        EXPECT_EQ(round[i].error_of(calls[i].outputs()), "") << "rank " << self.rank << ", poisoned again";
      check(cudaGraphExecDestroy(executable));
      check(cudaGraphDestroy(graph));
    }
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
norm_shape pair_shape(std::uint64_t tokens, std::uint64_t hidden) {
  norm_shape shape = shape_of(tokens, hidden);
  shape.size = 2;
  return shape;
}

TEST(failures, abort_releases_the_stream_and_stores_nothing) {
  if (!has_own_pair()) GTEST_SKIP() << "needs two ranks here";
  for (const std::uint64_t tokens : {6, 1024}) {
    own_pair pair(30);
    const norm_case test(pair_shape(tokens, 6144));
    gpu::stream queue(0);
    device_call call(test, 0, queue);
    ASSERT_EQ(call.start(pair.ranks[0]), ISTHMUS_SUCCESS) << gpu::last_error();
    EXPECT_EQ(cudaStreamQuery(stream_of(queue)), cudaErrorNotReady);
    EXPECT_EQ(isthmus_communicator_abort(pair.ranks[0]), ISTHMUS_SUCCESS);
    EXPECT_TRUE(call.outputs() == test.poisoned_outputs());
    EXPECT_EQ(call.start(pair.ranks[0]), ISTHMUS_ERROR_ABORTED);
  }
}

TEST(failures, timeout_is_reported_and_stores_nothing) {
  if (!has_own_pair()) GTEST_SKIP() << "needs two ranks here";
  own_pair pair(1);
  const norm_case test(pair_shape(140, 6144));
  gpu::stream queue(0);
  device_call call(test, 0, queue);
  ASSERT_EQ(call.start(pair.ranks[0]), ISTHMUS_SUCCESS) << gpu::last_error();
  EXPECT_TRUE(call.outputs() == test.poisoned_outputs());
  EXPECT_EQ(isthmus_communicator_async_error(pair.ranks[0]), ISTHMUS_ERROR_TIMEOUT) << gpu::last_error();
}

TEST(failures, different_arguments_are_reported_with_check) {
  if (!has_own_pair()) GTEST_SKIP() << "needs two ranks here";
  setenv("ISTHMUS_CHECK", "1", 1);
  own_pair pair(20);
  unsetenv("ISTHMUS_CHECK");
  topology::run_on_each_rank(2, [&](int rank) {
    const norm_case test(pair_shape(rank == 0 ? 4 : 2, rank == 0 ? 64 : 128));  // the same number of elements
    gpu::stream queue(rank);
    const device_call call(test, rank, queue);
    EXPECT_EQ(call.start(pair.ranks[rank]), ISTHMUS_ERROR_MISMATCH) << gpu::last_error();
    EXPECT_TRUE(call.outputs() == test.poisoned_outputs());
  });
}

TEST(failures, one_rank_is_refused) {
  const isthmus_device device{ISTHMUS_PLATFORM_CUDA, 0};
  isthmus_communicator alone = nullptr;
  ASSERT_EQ(isthmus_communicator_create_all(1, &device, nullptr, &alone), ISTHMUS_SUCCESS) << gpu::last_error();
  norm_shape shape = shape_of(2, 64);
  shape.size = 1;
  const norm_case test(shape);
  gpu::stream queue(0);
  const device_call call(test, 0, queue);
  EXPECT_EQ(call.start(alone), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(gpu::last_error().find("allreduce_rmsnorm"), std::string::npos) << gpu::last_error();
  isthmus_communicator_destroy(alone);
}

}  // namespace
