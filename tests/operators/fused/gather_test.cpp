// ALLGATHER_GEMM: layouts, types and odd shapes against a float64 oracle, late ranks, bitwise reproducibility,
// and the views of a run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "block.hpp"
#include "matrices.hpp"
#include "place.hpp"
#include "run_cases.hpp"

namespace fused_test {
namespace {

struct shape {
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
class rank_run {
 public:
  rank_run(member& self, const shape& test_shape)
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

  ~rank_run() {
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

  void run(isthmus_fused_view view = ISTHMUS_FUSED_WHOLE) {
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
    if (view == ISTHMUS_FUSED_WHOLE && !m_shape.in_place) {
      // The caller may overwrite A immediately, in stream order, so peers must already have fetched their rows.
      m_a.poison(m_a_data->host().data());
      m_a_data->upload();
    }
    m_c_data.download();
    m_gathered.download();
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

void run_case(const shape& test_shape) { run_twice<rank_run>(test_shape); }

TEST(fused_gather, types_and_layouts) {
  each_variant([](const variant& kind) {
    run_case({.rows_per_rank = 37,
              .n = 29,
              .k = 41,
              .input = kind.input,
              .output = kind.output,
              .b_layout = kind.b_layout,
              .gap = kind.gap,
              .chunks = 3,
              .mode = kind.mode,
              .bias = true,
              .gathered = kind.gap == 0,
              .alpha = 1.25,
              .beta = kind.gap == 0 ? 0.0 : -0.5});
  });
}

TEST(fused_gather, odd_shapes) {
  for (const auto& [rows, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 300, 7), std::tuple(300, 1, 3),
                                   std::tuple(130, 17, 257), std::tuple(2, 3, 1000), std::tuple(513, 8, 16)})
    for (const bool in_heap : {true, false})
      run_case({.rows_per_rank = static_cast<std::uint64_t>(rows),
                .n = static_cast<std::uint64_t>(n),
                .k = static_cast<std::uint64_t>(k),
                .in_heap = in_heap});
}

TEST(fused_gather, nothing_to_do) {
  run_case({.rows_per_rank = 0, .n = 5, .k = 4});
  run_case({.rows_per_rank = 3, .n = 0, .k = 4});
  run_case({.rows_per_rank = 3, .n = 5, .k = 0, .bias = true, .beta = 2});
  run_case({.rows_per_rank = 3, .n = 5, .k = 0, .mode = ISTHMUS_FUSED_SEQUENTIAL});
}

TEST(fused_gather, every_chunk_count) {
  for (const std::uint32_t chunks : {1u, 2u, 7u, 64u})
    run_case({.rows_per_rank = 64, .n = 12, .k = 20, .chunks = chunks, .in_heap = chunks != 7});
}

TEST(fused_gather, sharded_b_and_gathered_in_place) {
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .sharded = true});
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .mode = ISTHMUS_FUSED_SEQUENTIAL, .sharded = true});
  run_case({.rows_per_rank = 33, .n = 10, .k = 24, .in_heap = false, .in_place = true});
  run_case({.rows_per_rank = 33,
            .n = 10,
            .k = 24,
            .mode = ISTHMUS_FUSED_SEQUENTIAL,
            .in_heap = false,
            .in_place = true});
}

// An early rank must wait for exactly the rows that it needs.
TEST(fused_gather, late_ranks_get_identical_bits) {
  for (const bool in_heap : {true, false})
    run_with_delays<rank_run>(shape{
        .rows_per_rank = 96, .n = 40, .k = 64, .input = ISTHMUS_BFLOAT16, .chunks = 5, .in_heap = in_heap});
}

TEST(fused_gather, views_of_a_run) {
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL}) {
      rank_run run(self, {.rows_per_rank = 16, .n = 9, .k = 12, .mode = mode});
      run.fill(42);
      const auto previous_c = run.c();
      run.run(ISTHMUS_FUSED_COMMUNICATION_ONLY);
      EXPECT_EQ(run.c(), previous_c) << "communication alone does not change C";
      run.run(ISTHMUS_FUSED_COMPUTE_ONLY);  // uses the rows that have just been gathered
      run.check();
    }
  });
}

TEST(fused_gather, info_describes_the_schedule) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .chunks = 2, .in_heap = false});
    run.fill(1);
    run.run();
    const auto info = run.info();
    EXPECT_EQ(info["mode"], self.size > 1 ? "pipelined" : "sequential");
    EXPECT_EQ(info["groups"][0]["source"], self.rank);
    EXPECT_EQ(info["groups"].size(), static_cast<std::size_t>(1 + 2 * (self.size - 1)));
    if (self.size > 1) {
      EXPECT_NE(info["notes"][0].get<std::string>().find("outside the symmetric heap"), std::string::npos);
    }
    std::uint64_t rows = 0;
    for (const auto& each : info["groups"]) rows += each["rows"].get<std::uint64_t>();
    EXPECT_EQ(rows, 64u * static_cast<std::uint64_t>(self.size));
  });
}

TEST(fused_gather, info_has_predicted_and_measured_times) {
  test_ranks::get().for_each_rank([&](member& self) {
    for (const auto mode : {ISTHMUS_FUSED_PIPELINED, ISTHMUS_FUSED_SEQUENTIAL}) {
      rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .mode = mode, .traced = true});
      run.fill(1);
      const auto before = run.info();
      const auto& predicted_us = before["predicted_us"];
      if (platform() == ISTHMUS_PLATFORM_HOST || (self.size > 1 && mode == ISTHMUS_FUSED_PIPELINED)) {
        const double product_us = predicted_us["product"], transfer_us = predicted_us["transfer"];
        EXPECT_GT(product_us, 0);
        EXPECT_EQ(transfer_us > 0, self.size > 1);
        EXPECT_EQ(predicted_us["bound"], std::max(product_us, transfer_us));
        EXPECT_GE(predicted_us["sequential"].get<double>(), product_us + transfer_us);
      } else {
        EXPECT_TRUE(predicted_us.is_null());
      }
      for (const auto& each : before["measured_us"]) EXPECT_TRUE(each.is_null()) << "no run";
      for (const auto& [view, name] :
           {std::pair(ISTHMUS_FUSED_COMMUNICATION_ONLY, "transfer"),
            std::pair(ISTHMUS_FUSED_COMPUTE_ONLY, "product"), std::pair(ISTHMUS_FUSED_WHOLE, "whole")}) {
        EXPECT_TRUE(run.info()["measured_us"][name].is_null());
        const auto begin = std::chrono::steady_clock::now();
        run.run(view);
        const double measured_us = run.info()["measured_us"][name];
        const double limit_us =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        EXPECT_GE(measured_us, 0);
        EXPECT_LE(measured_us, limit_us);
      }
    }
  });
}

// The trace contains every copy and every product once, within the time of the run.
TEST(fused_gather, trace_contains_copies_and_products) {
  test_ranks::get().for_each_rank([&](member& self) {
    rank_run run(self, {.rows_per_rank = 64, .n = 9, .k = 12, .chunks = 2, .traced = true});
    const auto now_us = [] {
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    for (const auto view :
         {ISTHMUS_FUSED_COMPUTE_ONLY, ISTHMUS_FUSED_WHOLE, ISTHMUS_FUSED_COMMUNICATION_ONLY}) {
      run.fill(1);
      const double begin_us = now_us();
      run.run(view);
      const auto events = run.trace()["traceEvents"];
      EXPECT_EQ(events, run.trace()["traceEvents"]) << "reading the trace twice gives the same result";
      const double end_us = now_us();
      std::size_t transfer_events = 0, compute_events = 0;
      for (const auto& each : events) {
        if (each["ph"] != "X") continue;
        (each["cat"] == "compute" ? compute_events : transfer_events) += 1;
        EXPECT_GE(each["ts"].get<double>(), begin_us - 1000);
        EXPECT_LE(each["ts"].get<double>() + each["dur"].get<double>(), end_us + 1000);
      }
      const auto remote = 2 * static_cast<std::size_t>(self.size - 1);
      if (self.size == 1) continue;  // one product and no copies
      EXPECT_EQ(compute_events, view == ISTHMUS_FUSED_COMMUNICATION_ONLY ? 0 : 1 + remote);
      EXPECT_EQ(transfer_events, view == ISTHMUS_FUSED_COMPUTE_ONLY ? 0 : remote);
    }
  });
}

}  // namespace
}  // namespace fused_test
