// The stencil of the Parallel Research Kernels (Van der Wijngaart and others, 2014): a star on a square of
// cells that is divided into blocks. Each step adds one to every cell. The cells start as x + y, so the star,
// which is a derivative, adds 2 to every inner cell of the result in each step.
#include "common/application.hpp"
#include "common/blocks.hpp"
#include "parres/device_code.hpp"
#include "parres/device_text.hpp"  // generated
#include "parres/order.hpp"

namespace parres {

namespace {

using apps::array;
using apps::grid;
using apps::message;

apps::triple cut_of(const apps::program_options& options, int ranks) {
  const std::uint64_t order = order_of(options);
  return apps::arrange_ranks(std::array<std::uint64_t, 3>{order, order, 1}, ranks);
}

std::uint64_t footprint_of_stencil(const apps::program_options& options, int ranks) {
  const std::uint64_t order = order_of(options), radius = static_cast<unsigned>(options.radius);
  const apps::triple cut = cut_of(options, ranks);
  for (std::size_t d = 0; d < 2; ++d) {
    const std::uint64_t local_size = order / static_cast<unsigned>(cut.at(d));
    if (local_size >= radius && order > 2 * radius) continue;
    throw apps::bad_argument("--size: " + std::to_string(order) + " cells among " + std::to_string(cut.at(d)) +
                             " ranks, must be more than twice the radius of " + std::to_string(radius) +
                             " and at least the radius per rank; use a larger size or fewer ranks");
  }
  if (order * order > UINT32_MAX)
    throw apps::bad_argument("--size: " + std::to_string(order * order) +
                             " cells, must be less than 2^32; use a smaller size");
  return 3 * order * order * sizeof(double);
}

constexpr std::uint64_t wide(int n) { return static_cast<std::uint64_t>(n); }

// A rectangle of cells: its start and extent in x and y.
struct area {
  int x, y, nx, ny;
};

class stencil_program : public apps::application {
 public:
  stencil_program(const apps::run_context& context, apps::transport_kind kind)
      : m_context(context),
        m_ranks(kind, context.comm, context.queue, context.options.transport),
        m_order(static_cast<int>(order_of(context.options))),
        m_radius(context.options.radius) {
    m_cut = cut_of(context.options, m_ranks.size());
    const int nx = m_order / m_cut[0], ny = m_order / m_cut[1];
    m_own = {m_ranks.rank() % m_cut[0] * nx, m_ranks.rank() / m_cut[0] * ny, nx, ny};
    plan();
    m_cells = m_ranks.make_array<double>(wide(pitch()) * wide(ny + 2 * m_radius));
    m_result = m_ranks.make_array<double>(wide(nx) * wide(ny));
    const std::uint64_t max_messages = 2 * wide(m_radius) * wide(nx + ny);  // equal on every rank
    m_send = m_ranks.make_messages<double>(max_messages);
    m_recv = m_ranks.make_messages<double>(max_messages);
  }

  // Ghosts start as NaN, so that reading a cell that was not written is detected.
  void prepare(std::uint32_t seed) override {
    std::vector<double> values(m_cells.size(), std::nan(""));
    each_own([&](int x, int y) { values[index(x, y)] = start(x, y, seed); });
    m_cells.write(m_context.queue, values);
    m_result.write(m_context.queue, std::vector<double>(m_result.size(), 0.0));
  }

  void step() override {
    const auto& kernels = m_context.kernels;
    const auto& queue = m_context.queue;
    if (!m_out.empty()) {  // more than one rank
      const auto packed =
          kernels.run(queue, apps::linear_grid(m_sent.size()), pack{}, {}, m_sent, m_cells, m_send);
      const auto arrival = m_ranks.exchange(m_send.block(), m_out, m_recv.block(), m_in, {packed});
      kernels.run(queue, apps::linear_grid(m_received.size()), unpack{}, {arrival}, m_received, m_recv,
                  m_cells);
    }
    const area inner = inner_area();
    const auto extent = [](int n) { return static_cast<unsigned long>(std::max(0, n)); };
    const grid inner_grid{extent(inner.ny), extent(inner.nx), 8, 64},
        own_grid{extent(m_own.ny), extent(m_own.nx), 8, 64};
    const auto width = static_cast<unsigned long>(m_own.nx);
    kernels.run(queue, inner_grid,
                star{index(inner.x, inner.y), static_cast<unsigned long>(pitch()),
                     result_index(inner.x, inner.y), width, m_radius},
                {}, m_cells, m_result);
    kernels.run(queue, own_grid, increment{index(m_own.x, m_own.y), static_cast<unsigned long>(pitch())}, {},
                m_cells);
  }

  void finish() override { sycl::queue(m_context.queue).wait(); }

  // A cell's sum has 4 terms per step of the radius, none larger than the range of all cells.
  apps::check_result verify(std::uint32_t seed, int steps) override {
    const std::vector<double> cells = m_cells.read(m_context.queue), result = m_result.read(m_context.queue);
    const double largest = 2.0 * m_order + seed + steps;
    const double bound = steps * 8.0 * m_radius * largest * 0x1p-53;
    const area inner = inner_area();
    apps::check_result local_result;
    each_own([&](int x, int y) {
      const bool is_inner = x >= inner.x && x < inner.x + inner.nx && y >= inner.y && y < inner.y + inner.ny;
      const double actual = result[result_index(x, y)];
      local_result.wrong += cells[index(x, y)] != start(x, y, seed) + steps;
      local_result.wrong +=
          !(std::abs(actual - (is_inner ? 2.0 * steps : 0.0)) <= bound);  // NaN also counts as wrong
      const std::uint64_t place = static_cast<unsigned>(y) * std::uint64_t{static_cast<unsigned>(m_order)};
      local_result.digest += apps::mix(place + static_cast<unsigned>(x), std::bit_cast<std::uint64_t>(actual));
    });
    return apps::sum_over_ranks(m_context.comm, local_result);
  }

  void begin_profile() override { m_ranks.profile(m_context.queue); }
  double end_profile() override { return m_ranks.end_profile(); }
  std::string backend() const override { return m_ranks.backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_sent.size() * sizeof(double); }

 private:
  int pitch() const { return m_own.nx + 2 * m_radius; }
  // The index of a cell of the square, own or ghost.
  std::uint64_t index(int x, int y) const {
    return wide(y - m_own.y + m_radius) * wide(pitch()) + wide(x - m_own.x + m_radius);
  }
  std::uint64_t result_index(int x, int y) const {
    return wide(y - m_own.y) * wide(m_own.nx) + wide(x - m_own.x);
  }
  static double start(int x, int y, std::uint32_t seed) { return static_cast<double>(x) + y + seed; }
  // This rank's cells whose star lies within the square.
  area inner_area() const {
    const int x = std::max(m_own.x, m_radius), y = std::max(m_own.y, m_radius);
    return {x, y, std::min(m_own.x + m_own.nx, m_order - m_radius) - x,
            std::min(m_own.y + m_own.ny, m_order - m_radius) - y};
  }
  template <typename Visit>
  void each_own(Visit&& visit) const {
    for (int y = m_own.y; y < m_own.y + m_own.ny; ++y)
      for (int x = m_own.x; x < m_own.x + m_own.nx; ++x) visit(x, y);
  }

  // Plans one message in each direction with each neighbor; the square has borders.
  void plan() {
    std::vector<unsigned> sent, received;
    const auto add = [&](const area& cells, std::vector<unsigned>& list, std::vector<message>& to, int peer) {
      const std::uint64_t first = list.size();
      for (int y = cells.y; y < cells.y + cells.ny; ++y)
        for (int x = cells.x; x < cells.x + cells.nx; ++x) list.push_back(static_cast<unsigned>(index(x, y)));
      to.push_back({peer, first * sizeof(double), (list.size() - first) * sizeof(double)});
    };
    const auto [x, y, nx, ny] = m_own;
    const int r = m_radius, rank = m_ranks.rank();
    const auto add_neighbor = [&](bool exists, int peer, const area& edge, const area& ghosts) {
      if (!exists) return;
      add(edge, sent, m_out, peer);
      add(ghosts, received, m_in, peer);
    };
    add_neighbor(x > 0, rank - 1, {x, y, r, ny}, {x - r, y, r, ny});
    add_neighbor(x + nx < m_order, rank + 1, {x + nx - r, y, r, ny}, {x + nx, y, r, ny});
    add_neighbor(y > 0, rank - m_cut[0], {x, y, nx, r}, {x, y - r, nx, r});
    add_neighbor(y + ny < m_order, rank + m_cut[0], {x, y + ny - r, nx, r}, {x, y + ny, nx, r});
    m_sent = list_of(sent);
    m_received = list_of(received);
  }
  array<unsigned> list_of(const std::vector<unsigned>& cells) {
    auto list = m_ranks.make_array<unsigned>(cells.size());
    list.write(m_context.queue, cells);
    return list;
  }

  const apps::run_context m_context;
  apps::transport m_ranks;
  int m_order, m_radius;
  apps::triple m_cut{};
  area m_own{};
  std::vector<message> m_out, m_in;
  array<unsigned> m_sent, m_received;
  array<double> m_cells, m_result, m_send, m_recv;
};

}  // namespace

}  // namespace parres

apps::application_entry apps::prk_stencil_entry() {
  return {"prk_stencil",
          "float64",
          parres::device_text,
          {source_of<parres::star>(), source_of<parres::increment>(), source_of<parres::pack>(),
           source_of<parres::unpack>()},
          parres::footprint_of_stencil,
          [](const program_options& options) {
            return std::vector<std::pair<std::string, std::string>>{{"radius", std::to_string(options.radius)}};
          },
          [](const run_context& context, transport_kind kind) -> std::unique_ptr<application> {
            return std::make_unique<parres::stencil_program>(context, kind);
          },
          // Operations as counted by the original programs: two per weight, including the zero in the
          // middle, and one.
          {"mflops", [](const program_options& options) {
             const double inner = static_cast<double>(parres::order_of(options)) - 2.0 * options.radius;
             return 1e-6 * (2 * (4 * options.radius + 1) + 1) * inner * inner;
           }}};
}
