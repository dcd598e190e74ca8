// The transpose of the Parallel Research Kernels (Van der Wijngaart and others, 2014): B += A^T, then A += 1,
// for square matrices whose columns are divided among the ranks. All elements of both are known exactly after
// any number of steps.
#include "common/application.hpp"
#include "parres/device_code.hpp"
#include "parres/device_text.hpp"  // generated
#include "parres/order.hpp"

namespace parres {

namespace {

using apps::array;
using apps::grid;

std::uint64_t footprint_of_transpose(const apps::program_options& options, int ranks) {
  const std::uint64_t order = order_of(options);
  if (order % static_cast<unsigned>(ranks) != 0)
    throw apps::bad_argument(
        "--size: " + std::to_string(order) + " columns among " + std::to_string(ranks) +
        " ranks, must be a multiple of the number of ranks; change the size or the number of ranks");
  return 4 * order * order * sizeof(double);
}

class transpose_program : public apps::application {
 public:
  transpose_program(const apps::run_context& context, apps::transport_kind kind)
      : m_context(context),
        m_ranks(kind, context.comm, context.queue, context.options.transport),
        m_order(order_of(context.options)),
        m_columns(m_order / static_cast<unsigned>(m_ranks.size())),
        m_first(m_columns * static_cast<unsigned>(m_ranks.rank())) {
    const std::uint64_t count = m_order * m_columns;
    m_a = m_ranks.make_array<double>(count);
    m_b = m_ranks.make_array<double>(count);
    m_send = m_ranks.make_messages<double>(count);
    m_recv = m_ranks.make_messages<double>(count);
  }

  void prepare(std::uint32_t seed) override {
    std::vector<double> values(m_order * m_columns, std::nan(""));
    m_send.write(m_context.queue, values);
    m_recv.write(m_context.queue, values);
    each_element([&](std::uint64_t offset, std::uint64_t row, std::uint64_t column) {
      values[offset] = start(row, column, seed);
    });
    m_a.write(m_context.queue, values);
    m_b.write(m_context.queue, std::vector<double>(values.size(), 0.0));
  }

  void step() override {
    const unsigned long rows = m_order;  // of both grids: own columns times ranks
    const grid tiles{rows, m_columns, 16, 64};
    const auto& kernels = m_context.kernels;
    const auto take_event =
        kernels.run(m_context.queue, tiles, take_tiles{m_order, m_columns}, {}, m_a, m_send);
    const auto arrival =
        m_ranks.alltoall(m_send.block(), m_recv.block(), m_columns * m_columns * sizeof(double), {take_event});
    kernels.run(m_context.queue, tiles, add_tiles{m_order, m_columns}, {arrival}, m_recv, m_b);
  }

  void finish() override { sycl::queue(m_context.queue).wait(); }

  apps::check_result verify(std::uint32_t seed, int steps) override {
    const std::vector<double> a = m_a.read(m_context.queue), b = m_b.read(m_context.queue);
    apps::check_result local_result;
    each_element([&](std::uint64_t offset, std::uint64_t row, std::uint64_t column) {
      const double growth = steps * (steps - 1.0) / 2;
      local_result.wrong += a[offset] != start(row, column, seed) + steps;
      local_result.wrong += b[offset] != steps * start(column, row, seed) + growth;
      local_result.digest += apps::mix(column * m_order + row, std::bit_cast<std::uint64_t>(b[offset]));
    });
    return apps::sum_over_ranks(m_context.comm, local_result);
  }

  void begin_profile() override { m_ranks.profile(m_context.queue); }
  double end_profile() override { return m_ranks.end_profile(); }
  std::string backend() const override { return m_ranks.backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_send.size() * sizeof(double); }

 private:
  // An integer below 2^53, so all arithmetic here is exact.
  double start(std::uint64_t row, std::uint64_t column, std::uint32_t seed) const {
    return static_cast<double>(column * m_order + row + seed);
  }
  template <typename Visit>
  void each_element(Visit&& visit) const {
    for (std::uint64_t column = 0; column < m_columns; ++column)
      for (std::uint64_t row = 0; row < m_order; ++row) visit(column * m_order + row, row, m_first + column);
  }

  const apps::run_context m_context;
  apps::transport m_ranks;
  std::uint64_t m_order, m_columns, m_first;  // number of own columns, and the first of them
  array<double> m_a, m_b, m_send, m_recv;
};

}  // namespace

}  // namespace parres

apps::application_entry apps::prk_transpose_entry() {
  return {"prk_transpose",
          "float64",
          parres::device_text,
          {source_of<parres::take_tiles>(), source_of<parres::add_tiles>()},
          parres::footprint_of_transpose,
          [](const program_options&) { return std::vector<std::pair<std::string, std::string>>{}; },
          [](const run_context& context, transport_kind kind) -> std::unique_ptr<application> {
            return std::make_unique<parres::transpose_program>(context, kind);
          },
          // Bytes as counted by the original programs: both matrices once.
          {"mb_per_s", [](const program_options& options) {
             const auto order = static_cast<double>(parres::order_of(options));
             return 2e-6 * sizeof(double) * order * order;
           }}};
}
