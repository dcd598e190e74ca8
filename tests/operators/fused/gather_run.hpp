// Runs of ALLGATHER_GEMM.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "block.hpp"
#include "matrices.hpp"
#include "place.hpp"
#include "test_ranks.hpp"

namespace fused_test {

struct gather_shape {
  std::uint64_t rows_per_rank, n, k;
  isthmus_datatype input = ISTHMUS_FLOAT16, output = ISTHMUS_FLOAT32;
  isthmus_matrix_layout b_layout = ISTHMUS_ROW_MAJOR;
  std::uint64_t gap = 0;  // added to all leading dimensions
  std::uint32_t chunks = 0;
  isthmus_fused_mode mode = ISTHMUS_FUSED_PIPELINED;
  bool bias = false, gathered = false, in_heap = true, sharded = false, in_place = false, traced = false;
  double alpha = 1, beta = 0;
};

// One rank's plan and buffers.
class gather_run {
 public:
  using shape = gather_shape;

  gather_run(member& self, const shape& test_shape)
      : m_self(self),
        m_shape(test_shape),
        m_n(test_shape.n + (test_shape.sharded ? static_cast<std::uint64_t>(self.rank) : 0)),
        m_m(test_shape.rows_per_rank * static_cast<std::uint64_t>(self.size)),
        m_a(test_shape.input, test_shape.rows_per_rank, test_shape.k, ISTHMUS_ROW_MAJOR,
            test_shape.k + a_gap()),
        m_full_a(test_shape.input, m_m, test_shape.k, ISTHMUS_ROW_MAJOR, 0),
        m_b(test_shape.input, test_shape.k, m_n, test_shape.b_layout,
            (test_shape.b_layout == ISTHMUS_ROW_MAJOR ? m_n : test_shape.k) + test_shape.gap),
        m_c(test_shape.output, m_m, m_n, ISTHMUS_ROW_MAJOR, m_n + test_shape.gap),
        m_b_data(m_b.bytes(), self.stream),
        m_c_data(m_c.bytes(), self.stream),
        m_bias(test_shape.bias ? m_n * isthmus_datatype_bytes(test_shape.output) : 0, self.stream),
        m_gathered(test_shape.gathered || test_shape.in_place ? m_full_a.bytes() : 0, self.stream) {
    create_plan();
    void* existing_memory = nullptr;
    if (test_shape.in_place)
      existing_memory = m_gathered.data() + own_row() * test_shape.k * isthmus_datatype_bytes(test_shape.input);
    if (test_shape.in_heap && m_a.bytes() > 0) {
      if (isthmus_memory_allocate_symmetric(self.communicator, m_a.bytes(), &m_heap) != ISTHMUS_SUCCESS)
        throw std::runtime_error(last_error_text());
      existing_memory = m_heap;
    }
    m_a_data = std::make_unique<block>(m_a.bytes(), self.stream, existing_memory);
  }

  ~gather_run() {
    EXPECT_EQ(isthmus_fused_plan_destroy(m_plan), ISTHMUS_SUCCESS) << last_error_text();
    m_a_data.reset();
    EXPECT_EQ(isthmus_memory_free_symmetric(m_self.communicator, m_heap), ISTHMUS_SUCCESS);
  }

  void fill(std::uint64_t seed) {
    m_seed = seed;
    for (std::byte& each : m_gathered.host()) each = std::byte{0xff};
    m_a.fill(seed, own_row(), m_a_data->host().data());
    m_b.fill(seed + 1 + (m_shape.sharded ? static_cast<std::uint64_t>(m_self.rank) : 0), 0,
             m_b_data.host().data());
    if (m_shape.beta != 0)
      m_c.fill(seed + 100, 0, m_c_data.host().data());
    else
      m_c.poison(m_c_data.host().data());
    m_initial_c = m_c_data.host();
    if (m_shape.bias)
      matrix(m_shape.output, 1, m_n, ISTHMUS_ROW_MAJOR, 0).fill(seed + 200, 0, m_bias.host().data());
    for (block* each : {&m_gathered, m_a_data.get(), &m_b_data, &m_c_data, &m_bias}) each->upload();
  }

  void enqueue(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = m_a_data->data();
    arguments.b = m_b_data.data();
    arguments.c = m_c_data.data();
    arguments.bias = m_shape.bias ? m_bias.data() : nullptr;
    arguments.gathered_a = m_gathered.data();
    arguments.alpha = m_shape.alpha;
    arguments.beta = m_shape.beta;
    arguments.stream = m_self.stream;
    arguments.view = view;
    if (isthmus_fused_run(m_plan, &arguments) != ISTHMUS_SUCCESS) throw std::runtime_error(last_error_text());
  }

  // Blocking: waits for the run.
  void download() {
    m_c_data.download();
    m_gathered.download();
  }

  void run(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
    enqueue(view);
    if (view == ISTHMUS_FUSED_WHOLE && !m_shape.in_place) {
      // The caller may overwrite A immediately, in stream order, so peers must already have fetched their rows.
      m_a.poison(m_a_data->host().data());
      m_a_data->upload();
    }
    download();
  }

  void check() const {
    std::vector<std::byte> a(m_full_a.bytes());
    m_full_a.fill(m_seed, 0, a.data());
    const std::byte* c = m_c_data.host().data();
    const product full_product{m_full_a,
                               m_b,
                               m_c,
                               a.data(),
                               m_b_data.host().data(),
                               m_initial_c.data(),
                               m_shape.bias ? m_bias.host().data() : nullptr,
                               m_shape.alpha,
                               m_shape.beta,
                               m_shape.output,
                               0,
                               m_shape.bias && platform() != ISTHMUS_PLATFORM_HOST};
    EXPECT_EQ(product_error(full_product, c, 0), "") << "rank " << m_self.rank;
    EXPECT_EQ(m_c.gaps_error(c), "") << "rank " << m_self.rank;
    if (!m_gathered.host().empty()) {
      EXPECT_EQ(std::memcmp(m_gathered.host().data(), a.data(), a.size()), 0) << "gathered A";
    }
  }

  nlohmann::json info() const { return read(isthmus_fused_plan_info); }
  nlohmann::json trace() const { return read(isthmus_fused_plan_trace); }

  const std::vector<std::byte>& c() const { return m_c_data.host(); }

 private:
  std::uint64_t own_row() const { return static_cast<std::uint64_t>(m_self.rank) * m_shape.rows_per_rank; }
  // On devices the gathered A is dense, and so is every shard.
  std::uint64_t a_gap() const { return platform() == ISTHMUS_PLATFORM_HOST ? m_shape.gap : 0; }

  template <typename Query>
  nlohmann::json read(Query query) const {
    std::size_t needed = 0;
    if (query(m_plan, nullptr, 0, &needed) != ISTHMUS_SUCCESS) throw std::runtime_error(last_error_text());
    std::string text(needed, '\0');
    if (query(m_plan, text.data(), needed, nullptr) != ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
    text.resize(needed - 1);
    return nlohmann::json::parse(text);
  }

  void create_plan() {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.mode = m_shape.mode;
    description.m = m_m, description.n = m_n, description.k = m_shape.k;
    description.input = m_shape.input, description.output = m_shape.output;
    description.b_layout = m_shape.b_layout;
    description.flags = (m_shape.sharded ? static_cast<std::uint32_t>(ISTHMUS_FUSED_SHARDED_B) : 0u) |
                        (m_shape.traced ? static_cast<std::uint32_t>(ISTHMUS_FUSED_TRACE) : 0u);
    if (m_shape.gap > 0) {
      description.lda = m_shape.k + a_gap();
      description.ldb = (m_shape.b_layout == ISTHMUS_ROW_MAJOR ? m_n : m_shape.k) + m_shape.gap;
      description.ldc = m_n + m_shape.gap;
    }
    description.chunks = m_shape.chunks;
    if (isthmus_fused_plan_create(m_self.communicator, &description, &m_plan) != ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
  }

  member& m_self;
  shape m_shape;
  std::uint64_t m_n, m_m;
  matrix m_a, m_full_a, m_b, m_c;
  block m_b_data, m_c_data, m_bias, m_gathered;
  std::vector<std::byte> m_initial_c;
  std::unique_ptr<block> m_a_data;
  void* m_heap = nullptr;
  isthmus_fused_plan m_plan = nullptr;
  std::uint64_t m_seed = 0;
};

}  // namespace fused_test
